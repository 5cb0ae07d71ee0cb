package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// filling adds a submission's values to the composed objects.
type filling struct {
	submission *Submission
	spec       *rondov1.JobSpec
	volumes    *mounts
	memory     string // of a worker; empty: the manifests' value
	grace      int64  // a worker's grace period in seconds; 0: the manifests' value
}

func (f *filling) object(o *unstructured.Unstructured) error {
	switch o.GetKind() {
	case "Job", "JobSet":
		return f.workers(o)
	case "ConfigMap":
		if o.GetName() == recordOf(f.spec.Job) {
			return f.submission.keep(o)
		}
	case "Deployment":
		if err := setReplicas(o, f.submission.coordinators(f.spec)); err != nil {
			return err
		}
		return edit(o.Object, func(t *corev1.PodTemplateSpec) error {
			f.pods(t)
			return nil
		}, "spec", "template")
	case "StatefulSet":
		return f.etcd(o)
	case "Certificate":
		return f.certificate(o)
	case "PodDisruptionBudget":
		return edit(o.Object, func(p *policyv1.PodDisruptionBudgetSpec) error {
			if p.MinAvailable != nil {
				least := leastAvailable(f.spec, int(f.spec.Workers))
				p.MinAvailable = &least
			}
			return nil
		}, "spec")
	case "NetworkPolicy":
		return edit(o.Object, func(p *networkingv1.NetworkPolicySpec) error {
			f.policy(o.GetName(), p)
			return nil
		}, "spec")
	}
	return nil
}

// certificate names the job and its namespace in a process's certificate, as internal/certs reads
// it.
func (f *filling) certificate(o *unstructured.Unstructured) error {
	uris, _, err := unstructured.NestedStringSlice(o.Object, "spec", "uris")
	if err != nil || len(uris) == 0 { // an authority's, or etcd's
		return err
	}
	user := f.spec.Job + "/" + path.Base(uris[0])
	uri := "rondo://" + o.GetNamespace() + "/" + user
	return errors.Join(unstructured.SetNestedField(o.Object, user, "spec", "commonName"),
		unstructured.SetNestedStringSlice(o.Object, []string{uri}, "spec", "uris"))
}

// leastAvailable returns the number of workers that a drain must leave: as many as their memory is
// sized for. A drain may always take one worker, even if the job then pauses with a checkpoint,
// because a node cannot be blocked for a job's whole life.
func leastAvailable(spec *rondov1.JobSpec, workers int) intstr.IntOrString {
	return intstr.FromInt32(int32(min(fewest(spec), workers-1)))
}

// jobIn returns a Job, or the Job in a JobSet.
func jobIn(o *unstructured.Unstructured) (map[string]any, error) {
	if o.GetKind() != "JobSet" {
		return o.Object, nil
	}
	sets, _, err := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicatedJobs")
	if err != nil {
		return nil, err
	}
	return sets.([]any)[0].(map[string]any)["template"].(map[string]any), nil
}

// workers fills in a Job, or the Job in a JobSet.
func (f *filling) workers(o *unstructured.Unstructured) error {
	annotate(o, annotationRun, f.submission.run())
	if f.submission.Queue != "" {
		labels := o.GetLabels()
		labels[labelQueue] = f.submission.Queue
		o.SetLabels(labels)
	}
	// Printed manifests (run 0) have no owners, so deleting the Job would leave its objects there.
	if seconds, gone := f.submission.ttl(); gone && f.submission.Run > 0 {
		err := unstructured.SetNestedField(o.Object, seconds, "spec", "ttlSecondsAfterFinished")
		if err != nil {
			return err
		}
	}
	job, err := jobIn(o)
	if err != nil {
		return err
	}
	annotate(&unstructured.Unstructured{Object: job}, annotationRun, f.submission.run())
	for _, field := range []string{"completions", "parallelism"} {
		err := unstructured.SetNestedField(job, f.spec.Workers, "spec", field)
		if err != nil {
			return err
		}
	}
	return edit(job, func(t *corev1.PodTemplateSpec) error {
		f.pods(t)
		if err := f.worker(&t.Spec); err != nil {
			return err
		}
		return passThrough(f.submission, t)
	}, "spec", "template")
}

// pods fills in the values that all pods of the job share.
func (f *filling) pods(t *corev1.PodTemplateSpec) {
	s := f.submission
	metav1.SetMetaDataAnnotation(&t.ObjectMeta, annotationRun, s.run())
	if len(s.Labels) > 0 {
		t.Labels = maps.Clone(t.Labels)
		maps.Copy(t.Labels, s.Labels)
	}
	for name, value := range s.Annotations {
		metav1.SetMetaDataAnnotation(&t.ObjectMeta, name, value)
	}
	if s.PriorityClass != "" {
		t.Spec.PriorityClassName = s.PriorityClass
	}
	f.images(&t.Spec)
	for i := range t.Spec.Containers {
		t.Spec.Containers[i].Args = append(t.Spec.Containers[i].Args, s.logArgs()...)
	}
	endpoints := s.Etcd
	if len(endpoints) == 0 {
		endpoints = etcdEndpoints(s.etcdMembers(f.spec))
	}
	reach(&t.Spec, endpoints)
}

// logArgs returns the logging flags of a worker, coordinator or observer.
func (s *Submission) logArgs() (args []string) {
	if s.LogFormat != "" {
		args = append(args, "--log-format="+s.LogFormat)
	}
	if s.Verbose {
		args = append(args, "--verbose")
	}
	return args
}

// images sets how images are pulled.
func (f *filling) images(p *corev1.PodSpec) {
	for i := range p.Containers {
		p.Containers[i].ImagePullPolicy = corev1.PullPolicy(f.submission.ImagePullPolicy)
	}
	if name := f.submission.ImagePullSecret; name != "" {
		p.ImagePullSecrets = []corev1.LocalObjectReference{{Name: name}}
	}
}

// worker fills in the workers' nodes, resources and volumes.
func (f *filling) worker(p *corev1.PodSpec) error {
	s := f.submission
	if len(s.NodeSelector) > 0 {
		if p.NodeSelector == nil {
			p.NodeSelector = map[string]string{}
		}
		maps.Copy(p.NodeSelector, s.NodeSelector)
	}
	more, err := tolerations(s.Tolerations)
	if err != nil {
		return err
	}
	if f.grace > 0 {
		p.TerminationGracePeriodSeconds = &f.grace
	}
	p.Tolerations = append(p.Tolerations, more...)
	p.Volumes = append(p.Volumes, f.volumes.volumes...)
	at := slices.IndexFunc(p.Containers, func(c corev1.Container) bool {
		return c.Name == "worker"
	})
	if at < 0 {
		return fmt.Errorf("its pods have no container named worker")
	}
	c := &p.Containers[at]
	c.VolumeMounts = append(c.VolumeMounts, f.volumes.mounts...)
	c.Args = append(c.Args, jobspec.AllowFlags(f.spec)...)
	for i := range p.Volumes {
		if secret := p.Volumes[i].Secret; secret != nil && secret.SecretName == defaultS3Secret {
			secret.SecretName = s.S3Secret
		}
	}
	return f.resources(&c.Resources)
}

// resources sets a worker's requests. CPU gets a limit only if the manifests have one.
func (f *filling) resources(r *corev1.ResourceRequirements) error {
	cpus, err := resource.ParseQuantity(f.submission.cpus())
	if err != nil {
		return err
	}
	r.Requests[corev1.ResourceCPU] = cpus
	if f.memory != "" {
		memory, err := resource.ParseQuantity(f.memory)
		if err != nil {
			return err
		}
		r.Requests[corev1.ResourceMemory], r.Limits[corev1.ResourceMemory] = memory, memory
	}
	if _, limited := r.Limits[corev1.ResourceCPU]; limited {
		r.Limits[corev1.ResourceCPU] = cpus
	}
	return nil
}

// etcd fills in the members' images and disks.
func (f *filling) etcd(set *unstructured.Unstructured) error {
	members := f.submission.etcdMembers(f.spec)
	if err := setReplicas(set, members); err != nil {
		return err
	}
	err := edit(set.Object, func(p *corev1.PodSpec) error {
		f.images(p)
		peers(p, members)
		return nil
	}, "spec", "template", "spec")
	claims, _, _ := unstructured.NestedSlice(set.Object, "spec", "volumeClaimTemplates")
	if err != nil || len(claims) == 0 {
		return err
	}
	claim := claims[0].(map[string]any)
	class, size := storage(f.submission.EtcdStorage)
	if class != "" {
		claim["spec"].(map[string]any)["storageClassName"] = class
	}
	err = unstructured.SetNestedField(claim, size, "spec", "resources", "requests", "storage")
	if err != nil {
		return err
	}
	return unstructured.SetNestedSlice(set.Object, claims, "spec", "volumeClaimTemplates")
}

// policy allows connections to the ports of an external etcd and of buckets.
func (f *filling) policy(name string, p *networkingv1.NetworkPolicySpec) {
	switch strings.TrimPrefix(name, f.spec.Job+"-") {
	case "to-etcd":
		var ports []string
		for _, endpoint := range f.submission.Etcd {
			ports = append(ports, endpoint[strings.LastIndex(endpoint, ":")+1:])
		}
		if len(ports) > 0 {
			p.Egress[0].Ports = policyPorts(ports)
		}
	case "worker":
		for i := range p.Egress {
			if isStorage(&p.Egress[i]) {
				f.storage(&p.Egress[i])
			}
		}
	}
}

// isStorage reports whether a rule is that of component s3.
func isStorage(rule *networkingv1.NetworkPolicyEgressRule) bool {
	return len(rule.To) == 0 && len(rule.Ports) == 1 && rule.Ports[0].Port.IntValue() == 443
}

// storage narrows the rule of component s3 to the buckets' ports and the given addresses.
func (f *filling) storage(rule *networkingv1.NetworkPolicyEgressRule) {
	var ports []string
	for _, bucket := range f.volumes.buckets {
		ports = append(ports, portOf(bucket))
	}
	rule.Ports = policyPorts(ports)
	for _, cidr := range f.submission.S3CIDR {
		rule.To = append(rule.To, networkingv1.NetworkPolicyPeer{
			IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
	}
}

// portOf returns the port of a bucket's endpoint.
func portOf(bucket *url.URL) string {
	endpoint := bucket.Query().Get("endpoint")
	if endpoint == "" {
		return "443"
	}
	if !strings.Contains(endpoint, "://") {
		endpoint = "https://" + endpoint
	}
	u, err := url.Parse(endpoint)
	switch {
	case err == nil && u.Port() != "":
		return u.Port()
	case err == nil && u.Scheme == "http":
		return "80"
	}
	return "443"
}

// policyPorts returns TCP ports, each once.
func policyPorts(numbers []string) []networkingv1.NetworkPolicyPort {
	tcp := corev1.ProtocolTCP
	var ports []networkingv1.NetworkPolicyPort
	slices.Sort(numbers)
	for _, number := range slices.Compact(numbers) {
		port := intstr.Parse(number)
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: &tcp, Port: &port})
	}
	return ports
}

// edit changes a part of an object as its Go type.
func edit[T any](object map[string]any, change func(part *T) error, path ...string) error {
	fields, found, err := unstructured.NestedMap(object, path...)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("it has no %s", strings.Join(path, "."))
	}
	var part T
	converter := runtime.DefaultUnstructuredConverter
	if err := converter.FromUnstructuredWithValidation(fields, &part, true); err != nil {
		return err
	}
	if err := change(&part); err != nil {
		return err
	}
	changed, err := converter.ToUnstructured(&part)
	if err != nil {
		return err
	}
	return unstructured.SetNestedMap(object, changed, path...)
}
