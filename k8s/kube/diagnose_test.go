package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"rondo/k8s/kube/kubetest"
)

// A patient is a cluster's view of job song, to be changed for one symptom.
type patient struct {
	job         *batchv1.Job
	coordinator *appsv1.Deployment
	etcd        *appsv1.StatefulSet
	pods        []*corev1.Pod
	claims      []*corev1.PersistentVolumeClaim
	events      []*corev1.Event
	refused     []string // resources that may not be listed
}

const now = 1_800_000_000 // when the patients are looked at

// healthy is a job of two workers that runs.
func healthy() *patient {
	own := func(name, component string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "music",
			CreationTimestamp: metav1.Unix(now-600, 0), Annotations: map[string]string{
				annotationRun: "7"}, Labels: map[string]string{labelJob: "song",
				labelName: "rondo", labelComponent: component}}
	}
	two, three := int32(2), int32(3)
	p := &patient{
		job: &batchv1.Job{ObjectMeta: own("song-worker", Worker),
			Spec:   batchv1.JobSpec{Parallelism: &two, Completions: &two},
			Status: batchv1.JobStatus{Active: 2}},
		coordinator: &appsv1.Deployment{ObjectMeta: own("song-coordinator", Coordinator),
			Spec: appsv1.DeploymentSpec{Replicas: &two}},
		etcd: &appsv1.StatefulSet{ObjectMeta: own(etcdName, Etcd),
			Spec:   appsv1.StatefulSetSpec{Replicas: &three},
			Status: appsv1.StatefulSetStatus{Replicas: 3, ReadyReplicas: 3}},
	}
	p.coordinator.Spec.Template.Annotations = map[string]string{annotationRun: "7"}
	delete(p.etcd.Labels, labelJob)
	for _, name := range []string{"song-worker-0-aaaaa", "song-worker-1-bbbbb"} {
		pod := &corev1.Pod{ObjectMeta: own(name, Worker), Spec: corev1.PodSpec{NodeName: "a"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		pod.Annotations[batchv1.JobCompletionIndexAnnotation] = name[12:13]
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Worker, Ready: true,
			Image: "rondo:1", State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{}}}}
		p.pods = append(p.pods, pod)
	}
	return p
}

// waiting makes the first worker wait for a reason of the kubelet's.
func (p *patient) waiting(reason, message string) {
	p.pods[0].Status.Phase = corev1.PodPending
	p.pods[0].Status.ContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// unplaced makes the first worker wait for the scheduler.
func (p *patient) unplaced(message string) {
	p.pods[0].Spec.NodeName, p.pods[0].Status.ContainerStatuses = "", nil
	p.pods[0].Status.Phase = corev1.PodPending
	p.pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled,
		Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
}

// ended makes the first worker's process end.
func (p *patient) ended(code int32, reason, message string) {
	p.pods[0].Status.Phase = corev1.PodFailed
	p.pods[0].Status.ContainerStatuses[0].State = corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason,
			Message: message}}
}

// event reports something of an object, so many seconds ago.
func (p *patient) event(ago int64, kind, name, reason, message string) {
	p.events = append(p.events, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", len(p.events)),
			Namespace: "music"}, Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name},
		LastTimestamp:  metav1.Unix(now-ago, 0)})
}

// claim gives the first worker a volume.
func (p *patient) claim(name string, phase corev1.PersistentVolumeClaimPhase) {
	p.pods[0].Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	p.claims = append(p.claims, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "music"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: phase}})
}

// diagnose asks a cluster in which the patient lies.
func (p *patient) diagnose(t *testing.T) []Problem {
	t.Helper()
	client := kubetest.New(p.job, p.etcd)
	if p.coordinator != nil {
		check(t, client.Objects.Add(p.coordinator))
	}
	for _, pod := range p.pods {
		check(t, client.Objects.Add(pod))
	}
	for _, claim := range p.claims {
		check(t, client.Objects.Add(claim))
	}
	for _, event := range p.events {
		check(t, client.Objects.Add(event))
	}
	for _, refused := range p.refused {
		client.PrependReactor("*", refused, func(k8stesting.Action) (
			bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: refused}, "",
				errors.New("no"))
		})
	}
	c := &Cluster{Client: client, Namespace: "music", named: true}
	s, err := c.scene(t.Context(), "song")
	check(t, err)
	return s.problems(time.Unix(now, 0))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A symptom, in the words of Kubernetes, and what is to be said of it; "" is nothing.
type symptom struct {
	make  func(p *patient)
	want  []string
	fatal bool
}

func try(t *testing.T, symptoms map[string]symptom) {
	t.Helper()
	for name, s := range symptoms {
		p := healthy()
		s.make(p)
		problems := p.diagnose(t)
		if len(s.want) == 0 && len(problems) > 0 || len(s.want) > 0 && len(problems) != 1 {
			t.Errorf("%s: %v", name, problems)
			continue
		}
		for _, want := range s.want {
			if text := problems[0].String(); !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in: %s", name, want, text)
			}
		}
		if len(s.want) > 0 && problems[0].Fatal != s.fatal {
			t.Errorf("%s: fatal is %v", name, problems[0].Fatal)
		}
	}
}

func TestDiagnoseContainers(t *testing.T) {
	waiting := func(reason, message string) func(*patient) {
		return func(p *patient) { p.waiting(reason, message) }
	}
	try(t, map[string]symptom{
		"healthy":  {func(*patient) {}, nil, false},
		"starting": {waiting("ContainerCreating", ""), nil, false},
		"not found": {waiting("ErrImagePull", "rpc error: code = NotFound desc = no such image"),
			[]string{"pod/song-worker-0-aaaaa: ErrImagePull: image rondo:1: rpc error: code = " +
				"NotFound desc = no such image; ", "--image"}, false},
		"backing off": {waiting("ImagePullBackOff", "Back-off pulling"),
			[]string{"--image-pull-secret"}, true},
		"never": {waiting("ErrImageNeverPull", "not present with pull policy of Never"),
			[]string{"not present", "--image-pull-policy"}, true},
		"no name": {waiting("InvalidImageName", `Failed to apply default image tag "a:b:c"`),
			[]string{"give --image"}, true},
		"root": {waiting("CreateContainerConfigError", "container has runAsNonRoot and image "+
			"will run as root"), []string{"run as root", "Rondo's own image"}, true},
		"no program": {func(p *patient) { p.ended(128, "StartError", "exec: /worker: no such") },
			[]string{"StartError: exec: /worker: no such", "Rondo's own image"}, true},
	})
}

func TestDiagnoseNodesAndVolumes(t *testing.T) {
	claimed := func(name, reason, message string) func(*patient) {
		return func(p *patient) {
			p.claim(name, corev1.ClaimPending)
			if reason != "" {
				p.event(60, "PersistentVolumeClaim", name, reason, message)
			}
		}
	}
	const unbound = "no persistent volumes available for this claim and no storage class is set"
	mount := func(p *patient) {
		p.waiting("ContainerCreating", "")
		p.event(30, "Pod", "song-worker-0-aaaaa", "FailedMount", "configmap \"x\"\nnot found")
	}
	try(t, map[string]symptom{
		"cpu": {func(p *patient) { p.unplaced("0/3 nodes are available: 3 Insufficient cpu.") },
			[]string{"no node takes it: 0/3 nodes are available: 3 Insufficient cpu",
				"--cpus-per-worker"}, false},
		"gpu": {func(p *patient) {
			p.unplaced("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
			p.pods[0].Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{gpuResource: resource.MustParse("1")}}}}
		}, []string{"3 Insufficient nvidia.com/gpu", "nvidia.com/gpu.present=true", "rondo scale"},
			false},
		"queue": {func(p *patient) {
			p.unplaced("")
			p.pods[0].Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
			p.pods[0].Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: elasticGate}}
			p.job.Labels[labelQueue] = "team"
		}, []string{"Kueue has no quota for it yet in queue team", "rondo scale --job song"},
			false},
		"no claim": {func(p *patient) {
			p.unplaced(`persistentvolumeclaim "texts" not found`)
			p.claim("texts", "")
			p.claims = nil
		},
			[]string{"persistentvolumeclaim/texts: there is no such claim", "pvc://"}, true},
		"unbound": {claimed("texts", "FailedBinding", unbound),
			[]string{"persistentvolumeclaim/texts: FailedBinding: no persistent", "storageclass"},
			true},
		"unbound etcd": {func(p *patient) {
			claimed("data-rondo-etcd-0", "FailedBinding", unbound)(p)
			p.etcd.Status.ReadyReplicas = 1
		}, []string{"--etcd-storage ephemeral"}, true},
		"unbound member": {claimed("data-rondo-etcd-0", "FailedBinding", unbound),
			[]string{"--etcd-storage ephemeral"}, false},
		"provisioner": {claimed("texts", "ProvisioningFailed", "the disk is full"),
			[]string{"ProvisioningFailed: the disk is full"}, false},
		"being bound": {claimed("texts", "", ""), nil, false},
		"lost": {func(p *patient) { p.claim("texts", corev1.ClaimLost) },
			[]string{"volume is lost"}, true},
		"mount": {mount, []string{`FailedMount: configmap "x" not found`}, false},
		"mount, at first": {func(p *patient) {
			mount(p)
			p.pods[0].CreationTimestamp = metav1.Unix(now-5, 0)
		}, nil, false},
		"mount, in vain": {func(p *patient) {
			mount(p)
			p.events[0].Type = corev1.EventTypeNormal
		}, nil, false},
	})
}

func TestDiagnoseEnds(t *testing.T) {
	try(t, map[string]symptom{
		"asked to leave": {func(p *patient) { p.ended(4, "Error", "left") }, nil, false},
		"wrong input": {func(p *patient) {
			p.ended(3, "Error", "worker: --corpus: no such "+
				"file\n")
		},
			[]string{"worker: --corpus: no such file (exit code 3)", "submit again"}, true},
		"job failed": {func(p *patient) { p.ended(3, "Error", "worker: the loss is not finite") },
			[]string{"not finite", "rondo resume --job song -n music goes on"}, true},
		"process failed": {func(p *patient) { p.ended(1, "Error", "worker: disk full") },
			[]string{"disk full", "tried again"}, false},
		"memory": {func(p *patient) { p.ended(137, "OOMKilled", "") },
			[]string{"out of memory", "--memory-per-worker"}, false},
		"killed": {func(p *patient) { p.ended(137, "Error", "") }, []string{"killed"}, false},
		"replaced": {func(p *patient) {
			p.ended(1, "Error", "worker: disk full")
			next := p.pods[1].DeepCopy()
			next.Name,
				next.Annotations[batchv1.JobCompletionIndexAnnotation] = "song-worker-0-c", "0"
			p.pods = append(p.pods, next)
		}, nil, false},
		"of an earlier run": {func(p *patient) {
			p.ended(2, "Error", "worker: --corpus")
			p.pods[0].Annotations[annotationRun] = "6"
		}, nil, false},
		"hopeless": {func(p *patient) {
			p.ended(1, "Error", "worker: no such bucket")
			for i := range 2 {
				before := p.pods[0].DeepCopy()
				before.Name = fmt.Sprint("song-worker-0-", i)
				before.CreationTimestamp = metav1.Unix(now-700, 0)
				p.pods = append(p.pods, before)
			}
		}, []string{"no such bucket"}, true},
		"hopeful": {func(p *patient) {
			p.ended(1, "Error", "worker: no such bucket")
			for i := range 2 {
				before := p.pods[0].DeepCopy()
				before.Name = fmt.Sprint("song-worker-0-", i)
				before.CreationTimestamp = metav1.Unix(now-700, 0)
				p.pods = append(p.pods, before)
			}
			p.job.Annotations[annotations+"step"] = "5"
		}, []string{"no such bucket"}, false},
		"again and again": {func(p *patient) {
			p.pods[0].Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			p.pods[0].Status.ContainerStatuses[0].LastTerminationState = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no etcd"}}
		}, []string{"again and again: no etcd"}, false},
		"by policy": {func(p *patient) {
			p.ended(3, "Error", "worker: --corpus: no such file")
			p.job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed,
				Status: corev1.ConditionTrue, Reason: "PodFailurePolicy", Message: "Container " +
					"worker for pod music/song-worker-0-aaaaa failed with exit code 3 matching " +
					"FailJob rule at index 0"}}
			p.pods = p.pods[:1]
		}, []string{"job/song-worker: failed: worker: --corpus: no such file"}, true},
		"deadline": {func(p *patient) {
			p.job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed,
				Status: corev1.ConditionTrue, Reason: "DeadlineExceeded",
				Message: "Job was active longer than specified deadline"}}
		}, []string{"longer than specified deadline", "see rondo logs --job song -n music"}, true},
		"quorum": {func(p *patient) { p.etcd.Status.ReadyReplicas = 1 },
			[]string{"1 of 3 members are ready, and 2 are needed"}, false},
		"quorum of a job that has ended": {func(p *patient) {
			p.etcd.Status.ReadyReplicas = 0
			p.job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete,
				Status: corev1.ConditionTrue}}
		}, nil, false},
		"may not look": {func(p *patient) {
			p.refused = []string{"events", "persistentvolumeclaims"}
		}, []string{"namespace/music: you may not read its claims of volumes and events"}, false},
		"etcd starts": {func(p *patient) {
			p.etcd.Status.ReadyReplicas, p.etcd.CreationTimestamp = 0, metav1.Unix(now-10, 0)
		}, nil, false},
		"evicted": {func(p *patient) {
			p.pods[0].Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted",
				Message: "The node was low on resource: memory."}
		}, []string{"Evicted: The node was low"}, false},
	})
}

func TestDiagnoseRefusals(t *testing.T) {
	const quota = `pods "song-worker-0-x" is forbidden: exceeded quota: small, requested: ` +
		`pods=1, ` +
		`used: pods=3, limited: pods=3`
	fewer := func(ago int64, message string) func(p *patient) {
		return func(p *patient) {
			p.pods, p.job.Status.Active = p.pods[:1], 1
			p.event(ago, "Job", "song-worker", "FailedCreate", "Error creating: "+message)
		}
	}
	try(t, map[string]symptom{
		"quota": {fewer(10, quota), []string{"job/song-worker: its pods are refused: pods",
			"exceeded quota: small", "or have the quota raised"}, false},
		"long ago": {fewer(3600, quota), nil, false},
		"recovered": {func(p *patient) { fewer(10, quota)(p); p.job.Status.Active = 2 }, nil,
			false},
		"suspended": {func(p *patient) {
			fewer(10, quota)(p)
			yes := true
			p.job.Spec.Suspend = &yes
		}, nil, false},
		"pod security": {fewer(10, `pods "song-worker-0-x" is forbidden: violates PodSecurity `+
			`"restricted:latest": seccompProfile`), []string{"seccompProfile"}, true},
		"deployment": {func(p *patient) {
			p.coordinator.Status.Conditions = []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue,
				Reason: "FailedCreate", Message: quota}}
		}, []string{"deployment/song-coordinator", "quota: small"}, false},
		"etcd": {func(p *patient) {
			p.etcd.Status.Replicas = 2
			p.event(10, "StatefulSet", etcdName, "FailedCreate", "create Pod rondo-etcd-2 in "+
				"StatefulSet rondo-etcd failed error: "+quota)
		}, []string{"statefulset/rondo-etcd", "quota: small"}, false},
	})
}

// One problem of many pods is said once, what is past hope first, and then in order of time.
func TestProblemsAreGathered(t *testing.T) {
	p := healthy()
	p.waiting("ErrImagePull", "connection refused")
	p.pods[1].Status = *p.pods[0].Status.DeepCopy()
	third := p.pods[0].DeepCopy()
	third.Name = "song-worker-2-c"
	third.Status.ContainerStatuses[0].State.Waiting.Reason = "ErrImageNeverPull"
	p.pods = append(p.pods, third)
	for i, since := range []int64{now - 10, now - 20} {
		ended := p.pods[0].DeepCopy()
		ended.Name = fmt.Sprint("song-worker-", 3+i)
		ended.Annotations[batchv1.JobCompletionIndexAnnotation] = fmt.Sprint(3 + i)
		ended.Status.ContainerStatuses[0].State = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: ended.Name,
				FinishedAt: metav1.Unix(since, 0)}}
		p.pods = append(p.pods, ended)
	}
	problems := p.diagnose(t)
	var objects []string
	for _, problem := range problems {
		objects = append(objects, problem.Object)
	}
	want := []string{"pod/song-worker-2-c", "pod/song-worker-0-aaaaa and 1 more",
		"pod/song-worker-4", "pod/song-worker-3"}
	if !slices.Equal(objects, want) || !problems[0].Fatal || problems[1].Fatal {
		t.Errorf("%+v", problems)
	}
}

// A busy namespace has more events than one answer holds.
func TestEventsAreReadToTheEnd(t *testing.T) {
	client, asked := kubetest.New(healthy().job), map[string]int{}
	client.PrependReactor("list", "events", func(action k8stesting.Action) (
		bool, runtime.Object, error) {
		selector := action.(k8stesting.ListAction).GetListRestrictions().Fields.String()
		asked[selector]++
		list := &corev1.EventList{Items: make([]corev1.Event, eventsAtOnce)}
		if asked[selector] < 3 {
			list.Continue = "more"
		}
		return true, list, nil
	})
	c := &Cluster{Client: client, Namespace: "music"}
	s, err := c.scene(t.Context(), "song")
	check(t, err)
	want := map[string]int{"type=Warning": 3, "reason=FailedBinding": 3}
	if !maps.Equal(asked, want) || len(s.events) != 6*eventsAtOnce {
		t.Errorf("%d events after questions %v", len(s.events), asked)
	}
}
