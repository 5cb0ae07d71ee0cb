package k8s

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"rondo/job/jobspec"
)

// podOf is a pod as a template makes it.
func podOf(namespace, name string, template corev1.PodTemplateSpec) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = namespace, name
	return pod
}

// pods are those that the objects' controllers make, one of each template.
func pods(objects []metav1.Object) []corev1.Pod {
	var all []corev1.Pod
	for _, object := range objects {
		add := func(template corev1.PodTemplateSpec) {
			all = append(all, podOf(object.GetNamespace(), object.GetName(), template))
		}
		switch o := object.(type) {
		case *appsv1.Deployment:
			add(o.Spec.Template)
		case *appsv1.StatefulSet:
			add(o.Spec.Template)
		case *batchv1.Job:
			add(o.Spec.Template)
		case *jobSet:
			for _, job := range o.Spec.ReplicatedJobs {
				add(job.Template.Spec.Template)
			}
		}
	}
	return all
}

func component(p corev1.Pod) string { return p.Labels["app.kubernetes.io/component"] }

// Every pod meets the API server's conditions for a namespace that enforces "restricted".
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks())
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		for _, p := range pods(objects) {
			result := policy.AggregateCheckResults(
				evaluator.EvaluatePod(restricted, &p.ObjectMeta, &p.Spec))
			if !result.Allowed {
				t.Errorf("%s is not restricted: %s: %s", p.Name, result.ForbiddenReason(),
					result.ForbiddenDetail())
			}
			for _, c := range p.Spec.Containers {
				if only := c.SecurityContext.ReadOnlyRootFilesystem; only == nil || !*only {
					t.Errorf("%s, %s: the root file system is not read-only", p.Name, c.Name)
				}
				if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
					return m.MountPath == "/tmp"
				}) {
					t.Errorf("%s, %s: nothing is mounted at /tmp", p.Name, c.Name)
				}
			}
			if user := p.Spec.SecurityContext.RunAsUser; user == nil || *user != 65532 {
				t.Errorf("%s: it does not run as the image's user", p.Name)
			}
		}
	})
}

// Only the observer may speak to the Kubernetes API.
func TestTokens(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		for _, o := range objects {
			account, ok := o.(*corev1.ServiceAccount)
			if ok && (account.AutomountServiceAccountToken == nil ||
				*account.AutomountServiceAccountToken) {
				t.Errorf("service account %s gives every pod a token", account.Name)
			}
		}
		var holders []string
		for _, p := range pods(objects) {
			if mount := p.Spec.AutomountServiceAccountToken; mount == nil || *mount {
				t.Errorf("%s: a token is mounted in every container", p.Name)
			}
			var tokens []string
			for _, v := range p.Spec.Volumes {
				if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources,
					func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
					tokens = append(tokens, v.Name)
				}
			}
			for _, c := range p.Spec.Containers {
				for _, m := range c.VolumeMounts {
					if slices.Contains(tokens, m.Name) {
						holders = append(holders, component(p)+"/"+c.Name)
					}
				}
			}
		}
		if want := []string{"coordinator/observer"}; !slices.Equal(holders, want) {
			t.Errorf("containers with a token: %v; want %v", holders, want)
		}
	})
}

// help asks the commands themselves, built once, which flags they have.
func help(t *testing.T) func(words ...string) string {
	t.Helper()
	folder, known := t.TempDir(), map[string]string{}
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", folder+"/",
		"../cmd/rondo", "../cmd/worker", "../cmd/coordinator")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, output)
	}
	return func(words ...string) string {
		line := strings.Join(words, " ")
		if _, ok := known[line]; !ok {
			command := exec.Command(filepath.Join(folder, words[0]), words[1:]...)
			output, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", line, err, output)
			}
			known[line] = string(output)
		}
		return known[line]
	}
}

// The command has every flag, every variable in it is set, and the image has the version of the
// commands.
func TestArguments(t *testing.T) {
	ask := help(t)
	variable := regexp.MustCompile(`\$\((\w+)\)`)
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		for _, p := range pods(objects) {
			for _, c := range p.Spec.Containers {
				words := []string{strings.TrimPrefix(c.Command[0], "/")}
				version := ask(words[0], "--version")
				_, tag, _ := strings.Cut(c.Image, ":")
				if tag == "" || !strings.Contains(version, " version "+tag+",") {
					t.Errorf("%s, %s: image %s for %s", p.Name, c.Name, c.Image, version)
				}
				flags := 0
				for _, argument := range c.Args {
					name, value, _ := strings.Cut(argument, "=")
					if !strings.HasPrefix(name, "--") {
						words = append(words, name)
						continue
					}
					flags++
					known := regexp.MustCompile(`(?m)^ +(-\w, )?` + name + `\b`)
					if !known.MatchString(ask(append(words, "--help")...)) {
						t.Errorf("%s: %v has no flag %s", p.Name, words, name)
					}
					for _, used := range variable.FindAllStringSubmatch(value, -1) {
						if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
							return e.Name == used[1]
						}) {
							t.Errorf("%s, %s: %s is not set", p.Name, argument, used[1])
						}
					}
				}
				if flags == 0 {
					t.Errorf("%s, %s: no arguments", p.Name, c.Name)
				}
			}
		}
	})
}

// Every folder that a flag names is mounted, from a volume that the pod has.
func TestPaths(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		for _, p := range pods(objects) {
			volumes := []string{}
			for _, v := range p.Spec.Volumes {
				volumes = append(volumes, v.Name)
			}
			for _, o := range objects {
				if set, ok := o.(*appsv1.StatefulSet); ok && set.Name == p.Name {
					for _, claim := range set.Spec.VolumeClaimTemplates {
						volumes = append(volumes, claim.Name)
					}
				}
			}
			for _, c := range p.Spec.Containers {
				for _, m := range c.VolumeMounts {
					if !slices.Contains(volumes, m.Name) {
						t.Errorf("%s, %s: no volume %s", p.Name, c.Name, m.Name)
					}
				}
				arguments := c.Args
				for _, e := range c.Env {
					if e.Name == "XDG_CACHE_HOME" {
						arguments = append(slices.Clone(arguments), e.Name+"="+e.Value)
					}
				}
				if c.Name == "worker" && len(arguments) == len(c.Args) {
					t.Errorf("%s: the image says where tokens are kept", p.Name)
				}
				for _, argument := range arguments {
					_, at, _ := strings.Cut(argument, "=")
					if strings.HasPrefix(at, "/") && !slices.ContainsFunc(c.VolumeMounts,
						func(m corev1.VolumeMount) bool {
							return strings.HasPrefix(at+"/", m.MountPath+"/")
						}) {
						t.Errorf("%s, %s: nothing is mounted at %s", p.Name, c.Name, at)
					}
				}
			}
		}
	})
}

// The observer may patch the Job and the record that it is told of, and no others. What else it may
// do, it may not limit to one object: see its namespace, and record events.
func TestObserversJob(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		role := only[*rbacv1.Role](t, objects, "rondo-coordinator")
		args := only[*appsv1.Deployment](t, objects,
			"rondo-coordinator").Spec.Template.Spec.Containers[1].Args
		flags := map[string]string{"jobs": "--kube-job", "configmaps": "--kube-record"}
		for _, rule := range role.Rules {
			flag, limited := flags[rule.Resources[0]]
			if !limited {
				may := rule.Resources[0] + " " + strings.Join(rule.Verbs, " ")
				if may != "events create patch" && may != "namespaces get" {
					t.Errorf("it may also: %s", may)
				}
				continue
			}
			if len(rule.ResourceNames) != 1 || !slices.Contains(args, flag+"=$(JOB)"+
				strings.TrimPrefix(rule.ResourceNames[0], "rondo")) {
				t.Errorf("it may patch %v, and is told %v", rule.ResourceNames, args)
			}
		}
	})
}

// jobOf is the Job of an overlay's workers.
func jobOf(t *testing.T, overlay string, objects []metav1.Object) batchv1.JobSpec {
	t.Helper()
	if overlay == "jobset" {
		return only[*jobSet](t, objects, "rondo-worker").Spec.ReplicatedJobs[0].Template.Spec
	}
	return only[*batchv1.Job](t, objects, "rondo-worker").Spec
}

// The spec that the coordinators read is valid, and the Job and the budget agree with it.
func TestSpec(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []metav1.Object) {
		var text, name string
		for _, o := range objects {
			if m, ok := o.(*corev1.ConfigMap); ok && strings.HasPrefix(m.Name, "rondo-spec-") {
				text, name = m.Data["job.yaml"], m.Name
			}
		}
		spec, err := jobspec.FromYAML("job.yaml", []byte(text))
		if err == nil {
			err = jobspec.Validate(spec)
		}
		if err != nil {
			t.Fatalf("job.yaml: %v\n%s", err, text)
		}
		job := jobOf(t, overlay, objects)
		if int64(*job.Completions) != spec.Workers || int64(*job.Parallelism) != spec.Workers {
			t.Errorf("%d completions, %d parallel, for %d workers", *job.Completions,
				*job.Parallelism, spec.Workers)
		}
		budget := only[*policyv1.PodDisruptionBudget](t, objects, "rondo-worker").Spec
		if int64(budget.MinAvailable.IntValue()) != spec.MinWorkers {
			t.Errorf("the budget keeps %v, the job needs %d", budget.MinAvailable, spec.MinWorkers)
		}
		coordinators := only[*appsv1.Deployment](t, objects, "rondo-coordinator")
		mounted := coordinators.Spec.Template.Spec.Volumes[0].ConfigMap
		if mounted == nil || mounted.Name != name {
			t.Errorf("the coordinators mount %v, the spec is in %s", mounted, name)
		}
	})
}

// The exit codes: 2 and 3 end the Job, 4 and a disruption are nobody's failure, any other is
// tried again.
func TestExitCodes(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []metav1.Object) {
		job := jobOf(t, overlay, objects)
		actions := map[int32]batchv1.PodFailurePolicyAction{}
		ignored := false
		for _, rule := range job.PodFailurePolicy.Rules {
			if codes := rule.OnExitCodes; codes != nil {
				if *codes.ContainerName != "worker" ||
					codes.Operator != batchv1.PodFailurePolicyOnExitCodesOpIn {
					t.Errorf("a rule of container %s, %s", *codes.ContainerName, codes.Operator)
				}
				for _, code := range codes.Values {
					actions[code] = rule.Action
				}
			}
			for _, condition := range rule.OnPodConditions {
				ignored = ignored || condition.Type == corev1.DisruptionTarget &&
					rule.Action == batchv1.PodFailurePolicyActionIgnore
			}
		}
		for code, want := range map[int32]batchv1.PodFailurePolicyAction{
			1: "", 2: "", 137: "",
			3: batchv1.PodFailurePolicyActionFailJob,
			4: batchv1.PodFailurePolicyActionIgnore,
		} {
			if actions[code] != want {
				t.Errorf("exit code %d: %q; want %q", code, actions[code], want)
			}
		}
		if !ignored {
			t.Error("a disruption counts as a failure")
		}
		if *job.BackoffLimitPerIndex < 1000 || job.BackoffLimit != nil ||
			job.MaxFailedIndexes != nil {
			t.Error("a Job must not end because workers failed often")
		}
		if *job.SuccessPolicy.Rules[0].SucceededCount != 1 {
			t.Error("one worker that ends well speaks for the job")
		}
		// The API refuses any other together with a podFailurePolicy.
		if *job.PodReplacementPolicy != batchv1.Failed {
			t.Errorf("podReplacementPolicy %s", *job.PodReplacementPolicy)
		}
	})
}

// A GPU job asks for one GPU a worker, where there are GPUs, and has none to itself by chance.
func TestGPU(t *testing.T) {
	objects := build(t, memory(t), "/overlays/gpu")
	job := only[*batchv1.Job](t, objects, "rondo-worker").Spec
	pod := job.Template.Spec
	if gpus := pod.Containers[0].Resources.Limits["nvidia.com/gpu"]; gpus.Value() != 1 {
		t.Errorf("%v GPUs a worker", gpus)
	}
	if pod.NodeSelector["nvidia.com/gpu.present"] != "true" {
		t.Errorf("node selector %v", pod.NodeSelector)
	}
	if !slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool {
		return o.Key == "nvidia.com/gpu" && o.Operator == corev1.TolerationOpExists
	}) {
		t.Errorf("tolerations %v", pod.Tolerations)
	}
	if pod.Affinity.PodAffinity == nil || len(pod.TopologySpreadConstraints) > 0 {
		t.Error("workers are not gathered on few hosts")
	}
	for _, e := range pod.Containers[0].Env {
		if strings.HasPrefix(e.Name, "NVIDIA_") || strings.HasPrefix(e.Name, "CUDA_") {
			t.Errorf("%s is the device plugin's to set", e.Name)
		}
	}
}
