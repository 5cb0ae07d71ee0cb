package kube

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
)

// haWorkers is the number of workers from which a job has two coordinators and three members of
// etcd by default. Training goes on without any of them; only a new ring waits for the replacement,
// which a Deployment or StatefulSet starts by itself: seconds after a crash, a minute or two after
// the loss of a node. That wait costs something if a worker is lost in the same minute, so its
// expected cost grows with the number of workers, while the three more pods cost the same for each
// job: 300m CPU and 384 MiB, which are 15% of the smallest two workers and less than 4% of eight.
const haWorkers = 8

// highlyAvailable reports whether the job should outlast a lost coordinator or etcd member without
// a wait.
func highlyAvailable(s *Submission, spec *rondov1.JobSpec) bool {
	if s.HA != "" {
		return s.HA == "true"
	}
	return spec.Workers >= haWorkers
}

// coordinators returns the number of the job's coordinators.
func (s *Submission) coordinators(spec *rondov1.JobSpec) int {
	if highlyAvailable(s, spec) {
		return 2
	}
	return 1
}

// etcdMembers returns the number of etcd's members. Without a volume a member loses its data with
// its pod, so there are three unless a person says otherwise.
func (s *Submission) etcdMembers(spec *rondov1.JobSpec) int {
	if highlyAvailable(s, spec) || s.EtcdStorage == ephemeral && s.HA != "false" {
		return 3
	}
	return 1
}

// ttl returns the seconds that a job's objects stay after its end; false: until it is deleted.
func (s *Submission) ttl() (seconds int64, gone bool) {
	after, err := time.ParseDuration(s.TTL)
	if err != nil { // never; or empty, of an older submission
		return 0, false
	}
	return int64(after / time.Second), true
}

// validateLife checks --ha and --ttl-after-finished.
func validateLife(s *Submission) error {
	if !slices.Contains([]string{"", "true", "false"}, s.HA) {
		return app.Usagef("--ha %q is not true or false", s.HA)
	}
	after, err := time.ParseDuration(s.TTL)
	if s.TTL != "" && s.TTL != never && (err != nil || after < 0 || after > maxTTL) {
		return app.Usagef("--ttl-after-finished %q is not never or a time of at most %v, such as "+
			"1h or 0s", s.TTL, maxTTL)
	}
	return nil
}

// maxTTL is the longest --ttl-after-finished; Kubernetes counts it in seconds, in 32 bits.
const maxTTL = 365 * 24 * time.Hour

// etcdEndpoints returns the addresses of the members of the namespace's etcd.
func etcdEndpoints(members int) []string {
	all := etcdPeers(members)
	for i := range all {
		all[i] += "." + etcdName + ":2379"
	}
	return all
}

func etcdPeers(members int) []string {
	all := make([]string, members)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", etcdName, i)
	}
	return all
}

// reach tells a pod's containers where etcd is.
func reach(p *corev1.PodSpec, endpoints []string) {
	for i := range p.Containers {
		for j := range p.Containers[i].Env {
			if env := &p.Containers[i].Env[j]; env.Name == "ETCD" {
				env.Value = strings.Join(endpoints, ",")
			}
		}
	}
}

// peers tells a member of etcd the names of all members.
func peers(p *corev1.PodSpec, members int) {
	for i := range p.Containers {
		for j, arg := range p.Containers[i].Args {
			if strings.HasPrefix(arg, "--peers=") {
				p.Containers[i].Args[j] = "--peers=" + strings.Join(etcdPeers(members), ",")
			}
		}
	}
}

func setReplicas(o *unstructured.Unstructured, n int) error {
	return unstructured.SetNestedField(o.Object, int64(n), "spec", "replicas")
}

// needed returns the objects without the disruption budgets of single pods: a budget that allows
// one disruption does nothing for one pod.
func (f *filling) needed(all []*unstructured.Unstructured) []*unstructured.Unstructured {
	single := map[string]bool{
		f.spec.Job + "-" + Coordinator: f.submission.coordinators(f.spec) == 1,
		etcdName:                       f.submission.etcdMembers(f.spec) == 1,
	}
	return slices.DeleteFunc(all, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "PodDisruptionBudget" && single[o.GetName()]
	})
}

// fitEtcd points the job's pods to an etcd with this number of members.
func (m *Manifests) fitEtcd(members int) error {
	for _, o := range m.Job {
		var pods map[string]any
		switch o.GetKind() {
		case "Deployment":
			pods = o.Object
		case "Job", "JobSet":
			job, err := jobIn(o)
			if err != nil {
				return err
			}
			pods = job
		default:
			continue
		}
		err := edit(pods, func(p *corev1.PodSpec) error {
			reach(p, etcdEndpoints(members))
			return nil
		}, "spec", "template", "spec")
		if err != nil {
			return fmt.Errorf("%s: %w", nameOf(o), err)
		}
	}
	return nil
}
