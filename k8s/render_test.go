package k8s

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// memory is the tree in memory, as `rondo submit` renders it.
func memory(t *testing.T) filesys.FileSystem {
	t.Helper()
	return memoryAt(t, "/")
}

// memoryAt is the tree in a folder.
func memoryAt(t *testing.T, folder string) filesys.FileSystem {
	t.Helper()
	to := filesys.MakeFsInMemory()
	err := fs.WalkDir(FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(FS(), name)
		if err != nil {
			return err
		}
		return to.WriteFile(path.Join(folder, name), text)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// overlays are the names of the folders in overlays.
func overlays(t *testing.T) []string {
	t.Helper()
	entries, err := fs.ReadDir(FS(), "overlays")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) == 0 {
		t.Fatal("no overlays")
	}
	return names
}

// A JobSet's fields that Rondo uses.
type jobSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Suspend       *bool `json:"suspend,omitempty"`
		FailurePolicy struct {
			MaxRestarts int32 `json:"maxRestarts"`
		} `json:"failurePolicy"`
		Network struct {
			EnableDNSHostnames *bool `json:"enableDNSHostnames,omitempty"`
		} `json:"network"`
		ReplicatedJobs []struct {
			Name     string                  `json:"name"`
			Replicas int32                   `json:"replicas"`
			Template batchv1.JobTemplateSpec `json:"template"`
		} `json:"replicatedJobs"`
	} `json:"spec"`
}

// objectOf returns an empty object of a kind, or nil if the tree may not have that kind. Objects of
// other projects are read without a type.
func objectOf(apiVersion, kind string) metav1.Object {
	switch apiVersion + " " + kind {
	case "v1 ServiceAccount":
		return &corev1.ServiceAccount{}
	case "v1 Service":
		return &corev1.Service{}
	case "v1 ConfigMap":
		return &corev1.ConfigMap{}
	case "apps/v1 Deployment":
		return &appsv1.Deployment{}
	case "apps/v1 StatefulSet":
		return &appsv1.StatefulSet{}
	case "batch/v1 Job":
		return &batchv1.Job{}
	case "jobset.x-k8s.io/v1alpha2 JobSet":
		return &jobSet{}
	case "policy/v1 PodDisruptionBudget":
		return &policyv1.PodDisruptionBudget{}
	case "networking.k8s.io/v1 NetworkPolicy":
		return &networkingv1.NetworkPolicy{}
	case "rbac.authorization.k8s.io/v1 Role":
		return &rbacv1.Role{}
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		return &rbacv1.RoleBinding{}
	case "cert-manager.io/v1 Issuer", "cert-manager.io/v1 Certificate",
		"monitoring.coreos.com/v1 ServiceMonitor", "monitoring.coreos.com/v1 PodMonitor":
		return &unstructured.Unstructured{}
	}
	return nil
}

// decode reads an object strictly: a field that its kind does not have is an error.
func decode(t *testing.T, text []byte) metav1.Object {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		t.Fatal(err)
	}
	object := objectOf(kind.APIVersion, kind.Kind)
	if object == nil {
		t.Fatalf("%s %s: not a kind that the tree may have", kind.APIVersion, kind.Kind)
	}
	if u, foreign := object.(*unstructured.Unstructured); foreign {
		if err := yaml.Unmarshal(text, &u.Object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatalf("%s: %v\n%s", kind.Kind, err, text)
	}
	return object
}

// build renders a folder of the tree.
func build(t *testing.T, tree filesys.FileSystem, folder string) []metav1.Object {
	t.Helper()
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(tree, folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	var objects []metav1.Object
	for _, r := range rendered.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, decode(t, text))
	}
	return objects
}

// eachOverlay runs a test on the objects of every overlay.
func eachOverlay(t *testing.T, test func(t *testing.T, overlay string, objects []metav1.Object)) {
	t.Helper()
	tree := memory(t)
	for _, overlay := range overlays(t) {
		t.Run(overlay, func(t *testing.T) {
			test(t, overlay, build(t, tree, "/overlays/"+overlay))
		})
	}
}

// only is the one object of type T with a name.
func only[T metav1.Object](t *testing.T, objects []metav1.Object, name string) T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if typed, ok := o.(T); ok && o.GetName() == name {
			found = append(found, typed)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T named %s; want 1", len(found), *new(T), name)
	}
	return found[0]
}

// Everything is in the overlay's namespace, and says whose it is.
func TestOverlays(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		seen := map[string]bool{}
		for _, o := range objects {
			if o.GetNamespace() != "rondo" {
				t.Errorf("%T %s is in namespace %q", o, o.GetName(), o.GetNamespace())
			}
			if !strings.HasPrefix(o.GetName()+"-", "rondo-") {
				t.Errorf("%T %s: the name does not say that it is Rondo's", o, o.GetName())
			}
			if o.GetLabels()["app.kubernetes.io/name"] != "rondo" {
				t.Errorf("%T %s: labels %v", o, o.GetName(), o.GetLabels())
			}
			seen[o.GetName()] = true
		}
		if !seen["rondo-worker"] || !seen["rondo-coordinator"] {
			t.Errorf("no workers or no coordinators: %v", seen)
		}
	})
}

// kustomization reads a folder's own file.
func kustomization(t *testing.T, folder string) types.Kustomization {
	t.Helper()
	text, err := fs.ReadFile(FS(), folder+"/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k types.Kustomization
	if err := yaml.UnmarshalStrict(text, &k); err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	return k
}

// A component that no overlay has is one that no test has seen.
func TestEveryComponentIsInAnOverlay(t *testing.T) {
	used := map[string]bool{}
	var use func(folder string)
	use = func(folder string) {
		for _, component := range kustomization(t, folder).Components {
			component = path.Join(folder, component)
			used[component] = true
			use(component)
		}
	}
	for _, overlay := range overlays(t) {
		use("overlays/" + overlay)
	}
	found := 0
	err := fs.WalkDir(FS(), "components", func(name string, _ fs.DirEntry, err error) error {
		if path.Base(name) == "kustomization.yaml" {
			found++
			if !used[path.Dir(name)] {
				t.Errorf("%s is in no overlay", path.Dir(name))
			}
		}
		return err
	})
	if err != nil || found == 0 {
		t.Fatalf("%d components, %v", found, err)
	}
}

// A second job in the namespace shares nothing with the first but etcd.
func TestAnotherJob(t *testing.T) {
	tree := memory(t)
	for _, components := range [][]string{
		{"cpu", "spot", "s3", "kueue", "tls/job"}, {"gpu", "tls/job", "s3", "spot"},
		{"cpu", "external-etcd"}, {"gpu", "spot", "s3", "tls/job", "jobset"},
		{"cpu", "jobset", "kueue"},
	} {
		own := components
		at := slices.Index(components, "jobset")
		if at >= 0 {
			own = components[:at]
		}
		text := "namePrefix: wiki-\nnamespace: ml\nresources: [../job]\nlabels:\n" +
			"- pairs: {rondo.dev/job: wiki}\n  includeSelectors: true\n  includeTemplates: true\n" +
			"components: [../components/" + strings.Join(own, ", ../components/") + "]\n"
		if err := tree.WriteFile("/wiki/kustomization.yaml", []byte(text)); err != nil {
			t.Fatal(err)
		}
		folder, job := "/wiki", "wiki-worker"
		if at >= 0 {
			folder, job = "/above", "wiki-worker-ring-0"
			text = "resources: [../wiki]\ncomponents: [../components/" +
				strings.Join(components[at:], ", ../components/") + "]\n"
			if err := tree.WriteFile("/above/kustomization.yaml", []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		objects := build(t, tree, folder)
		for _, o := range objects {
			if !strings.HasPrefix(o.GetName(), "wiki-") || o.GetNamespace() != "ml" {
				t.Errorf("%v: %T %s/%s", components, o, o.GetNamespace(), o.GetName())
			}
			if o.GetLabels()["rondo.dev/job"] != "wiki" {
				t.Errorf("%v: %T %s: labels %v", components, o, o.GetName(), o.GetLabels())
			}
		}
		for _, p := range pods(objects) {
			if p.Labels["rondo.dev/job"] != "wiki" ||
				p.Spec.ServiceAccountName != "wiki-"+component(p) {
				t.Errorf("%v: %s: labels %v, account %s", components, p.Name, p.Labels,
					p.Spec.ServiceAccountName)
			}
			for _, v := range p.Spec.Volumes {
				if v.Secret != nil && strings.HasSuffix(v.Name, "tls") &&
					!strings.HasPrefix(v.Secret.SecretName, "wiki-") {
					t.Errorf("%v: %s: Secret %s", components, p.Name, v.Secret.SecretName)
				}
			}
		}
		role := only[*rbacv1.Role](t, objects, "wiki-coordinator")
		if names := role.Rules[0].ResourceNames; !slices.Equal(names, []string{job}) {
			t.Errorf("%v: the observer may read Jobs %v", components, names)
		}
		account := only[*rbacv1.RoleBinding](t, objects, "wiki-coordinator").Subjects[0]
		if account.Name != "wiki-coordinator" || account.Namespace != "ml" {
			t.Errorf("%v: the role is bound to %v", components, account)
		}
	}
}

// Kueue holds the object that makes the pods: a Job or a JobSet.
func TestQueue(t *testing.T) {
	job := only[*batchv1.Job](t, build(t, memory(t), "/overlays/kueue"), "rondo-worker")
	if job.Spec.Suspend == nil || !*job.Spec.Suspend ||
		job.Labels["kueue.x-k8s.io/queue-name"] != "rondo" ||
		job.Annotations["kueue.x-k8s.io/elastic-job"] != "true" {
		t.Errorf("the Job does not wait in the queue: %v, %v, %v", job.Spec.Suspend, job.Labels,
			job.Annotations)
	}
	tree := memory(t)
	text := "resources: [../job]\ncomponents: [../components/cpu, ../components/jobset, " +
		"../components/kueue]\n"
	if err := tree.WriteFile("/queued/kustomization.yaml", []byte(text)); err != nil {
		t.Fatal(err)
	}
	set := only[*jobSet](t, build(t, tree, "/queued"), "worker")
	inside := set.Spec.ReplicatedJobs[0].Template
	if set.Spec.Suspend == nil || !*set.Spec.Suspend || inside.Spec.Suspend != nil ||
		set.Labels["kueue.x-k8s.io/queue-name"] != "rondo" ||
		inside.Labels["kueue.x-k8s.io/queue-name"] != "" {
		t.Errorf("the JobSet does not wait in the queue: %v, %v, inside %v, %v", set.Spec.Suspend,
			set.Labels, inside.Spec.Suspend, inside.Labels)
	}
}

// The documented example of a user's own job works.
func TestDocumentedJob(t *testing.T) {
	page, err := os.ReadFile("../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := slices.DeleteFunc(
		regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1),
		func(e [][]byte) bool { return !bytes.Contains(e[1], []byte("\nkind: Kustomization\n")) })
	if len(examples) != 2 {
		t.Fatalf("%d examples; want two kustomizations", len(examples))
	}
	tree := memoryAt(t, "/mine/rondo/k8s")
	again := "commonAnnotations: {rondo.dev/run: \"2\"}\n"
	if !bytes.Contains(page, []byte(strings.TrimSpace(again))) {
		t.Errorf("how to run a job again is not documented as %s", again)
	}
	for name, text := range map[string][]byte{
		"/mine/kustomization.yaml":      examples[0][1],
		"/mine/song/kustomization.yaml": append(examples[1][1], again...),
		"/mine/song/job.yaml":           []byte("workers: 4\nmin_workers: 2\n"),
	} {
		if err := tree.WriteFile(name, text); err != nil {
			t.Fatal(err)
		}
	}
	objects := build(t, tree, "/mine")
	job := only[*batchv1.Job](t, objects, "song-worker")
	if *job.Spec.Completions != 4 || *job.Spec.Parallelism != 4 || job.Namespace != "music" {
		t.Errorf("%s/%s has %d of %d workers", job.Namespace, job.Name, *job.Spec.Parallelism,
			*job.Spec.Completions)
	}
	only[*appsv1.StatefulSet](t, objects, "rondo-etcd")
	coordinators := only[*appsv1.Deployment](t, objects, "song-coordinator")
	mounted := coordinators.Spec.Template.Spec.Volumes[0].ConfigMap.Name
	spec := only[*corev1.ConfigMap](t, objects, mounted)
	if !strings.HasPrefix(spec.Data["job.yaml"], "workers: 4\n") {
		t.Errorf("the coordinators read %q", spec.Data["job.yaml"])
	}
	for _, template := range []corev1.PodTemplateSpec{job.Spec.Template,
		coordinators.Spec.Template} {
		if run := template.Annotations["rondo.dev/run"]; run != "2" {
			t.Errorf("pods of run %q; want the second", run)
		}
	}
	image := job.Spec.Template.Spec.Containers[0].Image
	if image != "registry.example/rondo:0.2.0" {
		t.Errorf("image %s", image)
	}
}
