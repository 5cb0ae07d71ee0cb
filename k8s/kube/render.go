package kube

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"rondo/job/jobspec"
	"rondo/k8s"
	rondov1 "rondo/proto/rondo/v1"
)

// Labels and annotations of a job's objects.
const (
	labelJob             = "rondo.dev/job"
	labelManagedBy       = "app.kubernetes.io/managed-by"
	labelQueue           = "kueue.x-k8s.io/queue-name"
	annotationRun        = "rondo.dev/run"
	annotationSubmission = "rondo.dev/submission"
	annotationEnded      = "rondo.dev/ended" // of a record: the run whose end it holds
	manager              = "rondo"           // field manager of applied fields
)

// Kueue's elastic jobs: the gate of pods that wait for quota, and the feature that adds it.
const (
	elasticGate    = "kueue.x-k8s.io/elastic-job"
	elasticFeature = "ElasticJobsViaWorkloadSlices"
)

// Manifests holds the objects of a submission, in the order of their application.
type Manifests struct {
	Shared  []*unstructured.Unstructured // of the namespace: etcd, and what its jobs share
	Job     []*unstructured.Unstructured
	Spec    *rondov1.JobSpec // as the pods see it
	Notes   []string         // lines for the person who submits
	Keys    string           // Secret with the buckets' keys; empty: there are none
	Options Options
}

// Render composes the objects of a submission from the manifests in k8s, by kustomize, and fills in
// numbers, names and volumes. It asks no cluster. Local texts become a ConfigMap, and the
// submission names them there from then on.
func Render(ctx context.Context, s *Submission, namespace string) (*Manifests, error) {
	spec, err := s.job()
	if err != nil {
		return nil, err
	}
	if err := CheckName(spec.Job); err != nil {
		return nil, err
	}
	texts, err := s.bundle(spec.Job)
	if err != nil {
		return nil, err
	}
	if err := s.learn(ctx, spec); err != nil { // where the text was before it was bundled
		return nil, err
	}
	if spec, err = s.job(); err != nil {
		return nil, err
	}
	volumes, err := place(spec)
	if err != nil {
		return nil, err
	}
	if err := jobspec.Validate(spec); err != nil {
		return nil, err
	}
	fill := filling{submission: s, spec: spec, volumes: volumes}
	m := &Manifests{Spec: spec, Notes: notes(spec, s), Options: s.Options}
	var sizing string
	if fill.memory, sizing, err = s.size(spec); err != nil {
		return nil, err
	} else if sizing != "" {
		m.Notes = append(m.Notes, sizing)
	}
	if fill.grace, err = s.grace(spec); err != nil {
		return nil, err
	}
	tree, err := memoryTree()
	if err != nil {
		return nil, err
	}
	if len(volumes.buckets) > 0 && !s.S3Identity {
		m.Keys = s.S3Secret
	}
	if m.Shared, err = s.shared(tree, namespace); err != nil {
		return nil, err
	}
	if m.Job, err = s.composeJob(tree, spec, namespace, len(volumes.buckets) > 0); err != nil {
		return nil, err
	}
	if texts != nil {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(texts)
		if err != nil {
			return nil, fmt.Errorf("the ConfigMap of texts: %w", err)
		}
		u := &unstructured.Unstructured{Object: object}
		u.SetNamespace(namespace)
		u.SetLabels(map[string]string{"app.kubernetes.io/name": "rondo", labelJob: spec.Job,
			labelManagedBy: manager})
		m.Job = append(m.Job, u)
	}
	for _, object := range slices.Concat(m.Shared, m.Job) {
		if err := fill.object(object); err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	m.Shared, m.Job = fill.needed(m.Shared), fill.needed(m.Job)
	inOrder(m.Shared)
	inOrder(m.Job)
	return m, nil
}

// notes returns facts about the job that a person may not expect.
func notes(spec *rondov1.JobSpec, s *Submission) []string {
	var notes []string
	if !jobspec.KeepsModel(spec) {
		notes = append(notes, "without --checkpoint-dir (pvc:// or s3://) the model is lost when "+
			"the job ends, or when all its workers are gone at once")
	}
	if spec.MinWorkers == spec.Workers {
		notes = append(notes, fmt.Sprintf("--min-workers is all of --workers %d: whenever one is "+
			"lost or its node is drained, the job pauses until there are as many again",
			spec.Workers))
	}
	if len(s.Etcd) == 0 && s.EtcdStorage == ephemeral {
		lost := "all three members are lost at once"
		if s.etcdMembers(spec) == 1 {
			lost = "its only member is lost"
		}
		notes = append(notes, "etcd keeps its data on the nodes' disks: if "+lost+", jobs begin "+
			"again from their newest checkpoints")
	}
	if s.Insecure {
		notes = append(notes, "with --insecure whoever reaches the pods reads and changes what "+
			"passes between them, and may lead the job")
	}
	return notes
}

// memoryTree copies the manifests to a file system in memory, to which kustomizations are added.
func memoryTree() (filesys.FileSystem, error) {
	from, to := k8s.FS(), filesys.MakeFsInMemory()
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		return to.WriteFile(path.Join("/", name), content)
	})
	if err != nil {
		return nil, fmt.Errorf("the manifests cannot be read: %w", err)
	}
	return to, nil
}

// shared composes the objects that the namespace's jobs share.
func (s *Submission) shared(
	tree filesys.FileSystem, namespace string,
) ([]*unstructured.Unstructured, error) {
	k := types.Kustomization{Namespace: namespace, Images: s.images(),
		Labels: []types.Label{{Pairs: map[string]string{labelManagedBy: manager}}}}
	if len(s.Etcd) == 0 {
		k.Resources = []string{"../../etcd"}
		if s.EtcdStorage == ephemeral {
			k.Components = append(k.Components, "../../components/ephemeral-etcd")
		}
		if s.Spot {
			k.Components = append(k.Components, "../../components/spot")
		}
	}
	if !s.Insecure {
		k.Components = append(k.Components, "../../components/tls/etcd")
	}
	if s.Monitoring {
		k.Components = append(k.Components, "../../components/monitoring")
	}
	if len(k.Resources)+len(k.Components) == 0 {
		return nil, nil
	}
	return compose(tree, "/submitted/shared", k)
}

// composeJob composes the job's own objects.
func (s *Submission) composeJob(
	tree filesys.FileSystem, spec *rondov1.JobSpec, namespace string, s3 bool,
) ([]*unstructured.Unstructured, error) {
	text, err := jobspec.ToYAML(spec)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{labelManagedBy: manager}
	maps.Copy(labels, s.Labels)
	k := types.Kustomization{
		NamePrefix: spec.Job + "-", Namespace: namespace, Images: s.images(),
		Resources: []string{"../../job"},
		Labels: []types.Label{{Pairs: map[string]string{labelJob: spec.Job},
			IncludeSelectors: true, IncludeTemplates: true}, {Pairs: labels}},
	}
	above := types.Kustomization{Resources: []string{"../job"}}
	for _, c := range []struct {
		name string
		on   bool
		to   *types.Kustomization
	}{
		{"cpu", s.GPUsPerWorker == 0, &k}, {"gpu", s.GPUsPerWorker > 0, &k}, {"spot", s.Spot, &k},
		{"s3", s3, &k}, {"s3-identity", s3 && s.S3Identity, &k}, {"tls/job", !s.Insecure, &k},
		{"external-etcd", len(s.Etcd) > 0, &k},
		{"jobset", s.JobSet, &above}, // it makes another object of the Job, by its full name
		{"kueue", s.Queue != "", &above},
	} {
		if c.on {
			c.to.Components = append(c.to.Components, "../../components/"+c.name)
		}
	}
	for _, example := range []string{"/job/job.yaml", "/components/gpu/job.yaml"} {
		if err := tree.WriteFile(example, text); err != nil {
			return nil, fmt.Errorf("%s: %w", example, err)
		}
	}
	objects, err := compose(tree, "/submitted/job", k)
	if err != nil || len(above.Components) == 0 {
		return objects, err
	}
	return compose(tree, "/submitted/above", above)
}

// images returns the image that replaces the manifests' own.
func (s *Submission) images() []types.Image {
	m := imagePattern.FindStringSubmatch(s.Image)
	if m == nil {
		return nil
	}
	image := types.Image{Name: "rondo", NewName: m[1], NewTag: m[2], Digest: m[3]}
	if image.Digest != "" {
		image.NewTag = ""
	} else if image.NewTag == "" {
		image.NewTag = "latest"
	}
	return []types.Image{image}
}

// compose builds a kustomization in a folder of the tree.
func compose(
	tree filesys.FileSystem, folder string, k types.Kustomization,
) ([]*unstructured.Unstructured, error) {
	k.TypeMeta = types.TypeMeta{APIVersion: types.KustomizationVersion,
		Kind: types.KustomizationKind}
	text, err := yaml.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("the kustomization cannot be written: %w", err)
	}
	if err := tree.WriteFile(folder+"/kustomization.yaml", text); err != nil {
		return nil, fmt.Errorf("the kustomization cannot be written: %w", err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(tree, folder)
	if err != nil {
		return nil, fmt.Errorf("the manifests cannot be composed: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range built.Resources() {
		text, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.CurId(), err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("%s: %w", r.CurId(), err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// inOrder sorts objects so that each comes after those that it needs.
func inOrder(objects []*unstructured.Unstructured) {
	kinds := []string{"ServiceAccount", "Issuer", "Certificate", "ConfigMap", "Role",
		"RoleBinding", "NetworkPolicy", "Service", "PodDisruptionBudget", "ServiceMonitor",
		"PodMonitor", "StatefulSet", "Deployment", "Job", "JobSet"}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return slices.Index(kinds, a.GetKind()) - slices.Index(kinds, b.GetKind())
	})
}

// YAML writes all objects, as `kubectl apply -f` reads them.
func (m *Manifests) YAML() ([]byte, error) {
	var out bytes.Buffer
	for i, object := range slices.Concat(m.Shared, m.Job) {
		if i > 0 {
			out.WriteString("---\n")
		}
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

// workers returns the Job or JobSet among the job's objects.
func (m *Manifests) workers() *unstructured.Unstructured {
	at := slices.IndexFunc(m.Job, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "Job" || o.GetKind() == "JobSet"
	})
	return m.Job[at]
}
