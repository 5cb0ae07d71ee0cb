package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"rondo/k8s"
)

// Limits of waits for the cluster to change objects.
const (
	applyTimeout = 5 * time.Minute // includes the wait for the earlier run's workers
	pollEvery    = time.Second
	goneEvery    = 200 * time.Millisecond // between two looks whether an object is gone
)

// Apply holds the options of Cluster.Apply.
type Apply struct {
	CreateNamespace bool
	DryRun          bool         // the cluster checks everything and keeps nothing
	Say             func(string) // receives a line about each change
}

// objects reads and writes a cluster's objects of any kind.
type objects struct {
	*Cluster
	client dynamic.Interface
	mapper meta.RESTMapper
	dryRun []string
}

func (c *Cluster) objects(dryRun bool) (*objects, error) {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	o := &objects{Cluster: c, client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(
		memory.NewMemCacheClient(c.Client.Discovery()))}
	if dryRun {
		o.dryRun = []string{metav1.DryRunAll}
	}
	return o, nil
}

// of returns the client for objects of this one's kind and namespace.
func (o *objects) of(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := o.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	resources := o.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return resources, nil
	}
	return resources.Namespace(object.GetNamespace()), nil
}

// apply applies an object as the field manager rondo. A field that somebody else has set since is a
// conflict; it is not overwritten.
func (o *objects) apply(ctx context.Context, object *unstructured.Unstructured) error {
	resources, err := o.of(object)
	if err == nil {
		_, err = resources.Apply(ctx, object.GetName(), object,
			metav1.ApplyOptions{FieldManager: manager, DryRun: o.dryRun})
	}
	return Explain(err, "applying "+nameOf(object))
}

// count returns "1 object" or "2 objects".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// exists reports whether an object of this kind and name exists.
func (o *objects) exists(ctx context.Context, object *unstructured.Unstructured) (bool, error) {
	resources, err := o.of(object)
	if err == nil {
		_, err = resources.Get(ctx, object.GetName(), metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, Explain(err, "looking for "+nameOf(object))
}

// nameOf returns kubectl's name of an object: kind/name.
func nameOf(object *unstructured.Unstructured) string {
	return strings.ToLower(object.GetKind()) + "/" + object.GetName()
}

// applier applies the objects of one submission.
type applier struct {
	*objects
	m   *Manifests
	how Apply
}

// Apply applies a submission's objects. It creates shared objects that are missing and does not
// change others, because other jobs use them. An ended job of the same name makes room for the new
// one. A running one is left alone, and Apply fails.
func (c *Cluster) Apply(ctx context.Context, m *Manifests, how Apply) error {
	ctx, cancel := context.WithTimeoutCause(ctx, applyTimeout, fmt.Errorf("job %s is not applied "+
		"after %v: submit it again", m.Spec.Job, applyTimeout))
	defer cancel()
	o, err := c.objects(how.DryRun)
	if err != nil {
		return err
	}
	return (&applier{o, m, how}).run(ctx)
}

func (a *applier) run(ctx context.Context) error {
	for _, object := range slices.Concat(a.m.Shared, a.m.Job) { // before anything is changed
		if _, err := a.of(object); err != nil {
			return Explain(err, "applying "+nameOf(object))
		}
	}
	if err := a.allowed(ctx); err != nil {
		return err
	}
	if a.how.CreateNamespace {
		made, err := a.createNamespace(ctx)
		if err != nil || made && a.how.DryRun { // a dry run cannot ask for what is inside
			return err
		}
	}
	if err := a.applyShared(ctx); err != nil {
		return err
	}
	if err := a.makeRoom(ctx); err != nil {
		return err
	}
	if err := a.applyAll(ctx, a.m.Job, "job "+a.m.Spec.Job); err != nil || a.how.DryRun {
		return err
	}
	return a.sweep(ctx)
}

// applyAll applies objects one after the other. A dry run reports each of them.
func (a *applier) applyAll(
	ctx context.Context, all []*unstructured.Unstructured, what string,
) error {
	for _, object := range all {
		if err := a.apply(ctx, object); err != nil {
			return err
		}
		if a.how.DryRun {
			a.how.Say(strings.TrimSuffix(nameOf(object), dryRunSuffix) +
				" would be applied (server dry run)")
		}
	}
	if len(all) > 0 && !a.how.DryRun {
		a.how.Say(fmt.Sprintf("%s: %s applied", what, count(len(all), "object")))
	}
	return nil
}

// allowed fails, before anything is created, if this user may not create some of the objects. If
// the cluster does not answer this question, applying shows it.
func (a *applier) allowed(ctx context.Context) error {
	var denied []string
	asked := map[schema.GroupResource]bool{}
	for _, object := range slices.Concat(a.m.Shared, a.m.Job) {
		kind := object.GroupVersionKind()
		mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return Explain(err, "applying "+nameOf(object))
		}
		resource := mapping.Resource.GroupResource()
		if asked[resource] {
			continue
		}
		asked[resource] = true
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: a.Namespace,
					Verb: "create", Group: resource.Group, Resource: resource.Resource}}}
		answer, err := a.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review,
			metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			denied = append(denied, resource.String())
		}
	}
	if len(denied) == 0 {
		return nil
	}
	return fmt.Errorf("you may not create %s in namespace %s, so nothing was created: ask "+
		"the cluster's administrator for these rights (k8s/user.yaml)",
		strings.Join(denied, ", "), a.Namespace)
}

// createNamespace creates the namespace of k8s/namespace.yaml. made is false if it exists.
func (a *applier) createNamespace(ctx context.Context) (made bool, err error) {
	options := metav1.CreateOptions{FieldManager: manager}
	if a.how.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	text, err := fs.ReadFile(k8s.FS(), "namespace.yaml")
	if err != nil {
		return false, err
	}
	namespace := &corev1.Namespace{}
	if err := yaml.UnmarshalStrict(text, namespace); err != nil {
		return false, fmt.Errorf("namespace.yaml: %w", err)
	}
	namespace.Name = a.Namespace
	_, err = a.Client.CoreV1().Namespaces().Create(ctx, namespace, options)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	switch {
	case err == nil && a.how.DryRun:
		a.how.Say("namespace/" + a.Namespace + " would be created (server dry run); the rest can " +
			"be checked once it is there")
	case err == nil:
		a.how.Say("namespace/" + a.Namespace + " created")
	}
	return err == nil, Explain(err, "creating namespace "+a.Namespace)
}

// workersKinds returns the objects of that name that a job's workers can be: a Job and a JobSet.
func workersKinds(namespace, name string) []*unstructured.Unstructured {
	var both []*unstructured.Unstructured
	for _, kind := range []schema.GroupVersionKind{
		batchv1.SchemeGroupVersion.WithKind("Job"), jobSetKind()} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		u.SetNamespace(namespace)
		u.SetName(name)
		both = append(both, u)
	}
	return both
}

func jobSetKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
}

// dryRunSuffix keeps the name of workers in a server-side dry run apart from the live workers'.
const dryRunSuffix = "-anew"

// makeRoom removes the workers of an ended run, because a Job's pods cannot be changed in place.
func (a *applier) makeRoom(ctx context.Context) error {
	resources, old, err := a.findWorkers(ctx, a.m.Spec.Job)
	if err != nil || old == nil {
		return err
	}
	if err := a.replaceable(old); err != nil {
		return err
	}
	if a.how.DryRun { // under the old name the cluster would compare the two
		a.m.workers().SetName(a.m.workers().GetName() + dryRunSuffix)
		return nil
	}
	a.how.Say(nameOf(old) + " of the earlier run is removed")
	if err := remove(ctx, resources, old); err != nil {
		return err
	}
	// The old run's observers would write its end over the new run's progress.
	return a.removeCoordinators(ctx)
}

// removeCoordinators removes the coordinators of the earlier run.
func (a *applier) removeCoordinators(ctx context.Context) error {
	for _, object := range a.m.Job {
		if object.GetKind() != "Deployment" {
			continue
		}
		resources, err := a.of(object)
		if err != nil {
			return Explain(err, "looking for "+nameOf(object))
		}
		old, err := resources.Get(ctx, object.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return Explain(err, "looking for "+nameOf(object))
		}
		if err := remove(ctx, resources, old); err != nil {
			return err
		}
	}
	return nil
}

// replaceable fails if the workers have begun and have not ended. Workers that have not begun, for
// example because their image is missing, may be replaced.
func (a *applier) replaceable(old *unstructured.Unstructured) error {
	if old.GetLabels()[labelJob] == "" {
		return fmt.Errorf("%s exists and is not Rondo's: give another --job", nameOf(old))
	}
	if old.GetDeletionTimestamp() != nil || endedObject(old) || !begun(old) {
		return nil
	}
	job := a.m.Spec.Job
	suspended, _, _ := unstructured.NestedBool(old.Object, "spec", "suspend")
	if suspended {
		return fmt.Errorf("job %s is suspended: %s goes on with it; to begin anew, %s first, or "+
			"give another --job", job, a.command("resume", job), a.command("delete", job))
	}
	where := ""
	if step := old.GetAnnotations()[annotations+"step"]; step != "" {
		where = " (step " + step + ")"
	}
	return fmt.Errorf("job %s is running%s: see %s; %s ends it with a checkpoint; or give "+
		"another --job", job, where, a.command("status", job), a.command("stop", job))
}

// begun reports whether a worker of a Job or JobSet has run, as far as its status shows.
func begun(workers *unstructured.Unstructured) bool {
	ready, _, _ := unstructured.NestedInt64(workers.Object, "status", "ready")
	if sets, _, _ := unstructured.NestedSlice(workers.Object, "status",
		"replicatedJobsStatus"); len(sets) > 0 {
		if set, ok := sets[0].(map[string]any); ok {
			ready, _, _ = unstructured.NestedInt64(set, "ready")
		}
	}
	return ready > 0 || workers.GetAnnotations()[annotations+"step"] != ""
}

// ended returns how a Job has ended: "Complete", "Failed", or "" if it has not.
func ended(j *batchv1.Job) string {
	for _, c := range j.Status.Conditions {
		if c.Status == corev1.ConditionTrue &&
			(c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return string(c.Type)
		}
	}
	return ""
}

// endedObject reports whether the run of a Job or JobSet has ended. A job that was stopped while it
// was suspended has ended by its observer's annotation, although its Job has not.
func endedObject(workers *unstructured.Unstructured) bool {
	if endedPhase(workers.GetAnnotations()[annotations+"phase"]) {
		return true
	}
	conditions, _, _ := unstructured.NestedSlice(workers.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["status"] == "True" && slices.Contains([]any{"Complete", "Failed",
			"Completed"}, condition["type"]) // the last is a JobSet's word
	})
}

// remove deletes an object and the pods that it owns, and waits until they are gone.
func remove(
	ctx context.Context, from dynamic.ResourceInterface, object *unstructured.Unstructured,
) error {
	policy := metav1.DeletePropagationBackground
	switch object.GetKind() {
	case "Job", "JobSet", "Deployment", "StatefulSet":
		policy = metav1.DeletePropagationForeground
	}
	err := from.Delete(ctx, object.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return Explain(err, "deleting "+nameOf(object))
	}
	return gone(ctx, from, object)
}

// gone waits until a deleted object has disappeared.
func gone(
	ctx context.Context, from dynamic.ResourceInterface, object *unstructured.Unstructured,
) error {
	for {
		there, err := from.Get(ctx, object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && there.GetUID() != object.GetUID():
			return nil
		case ctx.Err() != nil:
			return unfinished(ctx, object)
		case err != nil:
			return Explain(err, "waiting for "+nameOf(object)+" to go")
		}
		if wait(ctx, goneEvery) != nil {
			return unfinished(ctx, object)
		}
	}
}

// unfinished returns an error with the object that is still there, and the likely cause.
func unfinished(ctx context.Context, object *unstructured.Unstructured) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("%w; %s still waits for its pods to end: of one whose node is lost, kubectl "+
		"delete node NODE, or kubectl delete pod POD --force where that node is off for good",
		context.Cause(ctx), nameOf(object))
}

// wait waits for d. It returns ctx's cause if ctx ends first.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// sweep removes the ConfigMaps of earlier runs. Their names contain a hash of their content, so
// each run can have new ones.
func (a *applier) sweep(ctx context.Context) error {
	kept := map[string]bool{}
	for _, object := range a.m.Job {
		kept[object.GetName()] = true
	}
	for _, place := range []string{a.m.Spec.Corpus, a.m.Spec.EvalCorpus, a.m.Spec.Vectors} {
		name, inside := strings.CutPrefix(place, configMapsAt)
		if inside {
			name, _, _ = strings.Cut(name, "/")
			kept[name] = true
		}
	}
	maps := a.Client.CoreV1().ConfigMaps(a.Namespace)
	all, err := maps.List(ctx, metav1.ListOptions{
		LabelSelector: labelJob + "=" + a.m.Spec.Job + "," + labelManagedBy + "=" + manager})
	if err != nil {
		return Explain(err, "listing the job's configmaps")
	}
	for _, found := range all.Items {
		if kept[found.Name] {
			continue
		}
		err := maps.Delete(ctx, found.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return Explain(err, "deleting configmap/"+found.Name)
		}
	}
	return nil
}
