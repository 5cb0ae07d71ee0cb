package kube

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"rondo/k8s"
)

// applyTimeout bounds applying, with its wait for the earlier run's workers to go.
const applyTimeout = 5 * time.Minute

// applier applies the objects of one submission.
type applier struct {
	*objects
	m            *Manifests
	how          Run
	say          func(string)   // receives a line about each change
	certificates []*certificate // whose Secrets submit makes itself
}

// apply applies a submission's objects. It creates shared objects that are missing and does not
// change others, because other jobs use them. An ended job of the same name makes room for the new
// one. A running one is left alone, and apply fails.
func (s *submitter) apply(ctx context.Context, m *Manifests) error {
	ctx, cancel := context.WithTimeoutCause(ctx, applyTimeout, fmt.Errorf("job %s is not applied "+
		"after %v: submit it again", m.Spec.Job, applyTimeout))
	defer cancel()
	o, err := s.objects(s.how.ServerDryRun)
	if err != nil {
		return err
	}
	return (&applier{objects: o, m: m, how: s.how, say: s.say}).run(ctx)
}

func (a *applier) run(ctx context.Context) error {
	if err := a.takeCertificates(ctx); err != nil {
		return err
	}
	if err := a.allowed(ctx); err != nil {
		return err
	}
	if a.how.CreateNamespace {
		made, err := a.createNamespace(ctx)
		if err != nil || made && a.how.ServerDryRun { // a dry run cannot ask for what is inside
			return err
		}
	}
	if err := a.checkKeys(ctx); err != nil {
		return err
	}
	if err := a.makeRoom(ctx); err != nil { // first: the old Job's certificates go with it
		return err
	}
	if err := a.applyCertificates(ctx); err != nil {
		return err
	}
	if err := a.applyShared(ctx); err != nil {
		return err
	}
	if err := a.applyJob(ctx); err != nil || a.how.ServerDryRun {
		return err
	}
	if err := a.own(ctx); err != nil {
		return err
	}
	return a.sweep(ctx)
}

// applyAll applies objects one after the other. A dry run reports each of them.
func (a *applier) applyAll(
	ctx context.Context, all []*unstructured.Unstructured, what string,
) error {
	for _, object := range all {
		if a.unchecked(object) {
			a.say(nameOf(object) + " would be applied; it is checked once its Role is there")
			continue
		}
		if err := a.apply(ctx, object); err != nil {
			return err
		}
		if a.how.ServerDryRun {
			a.say(strings.TrimSuffix(nameOf(object), dryRunSuffix) +
				" would be applied (server dry run)")
		}
	}
	if len(all) > 0 && !a.how.ServerDryRun {
		a.say(fmt.Sprintf("%s: %s applied", what, count(len(all), "object")))
	}
	return nil
}

// unchecked reports whether a dry run cannot have an object checked: the API server compares the
// rights of a RoleBinding's Role with those of this user, and a dry run makes no Role.
func (a *applier) unchecked(object *unstructured.Unstructured) bool {
	return a.how.ServerDryRun && object.GetKind() == "RoleBinding"
}

// allowed fails, before anything is created, if the cluster lacks a kind of object or this user may
// not create some of them. If the cluster does not answer this question, applying shows it.
func (a *applier) allowed(ctx context.Context) error {
	var denied []string
	asked := map[schema.GroupResource]bool{}
	all := slices.Concat(a.m.Shared, a.m.Job)
	for _, c := range a.certificates {
		all = append(all, c.secret)
	}
	for _, object := range all {
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
	text, err := fs.ReadFile(k8s.FS(), "namespace.yaml")
	if err != nil {
		return false, err
	}
	namespace := &corev1.Namespace{}
	if err := yaml.UnmarshalStrict(text, namespace); err != nil {
		return false, fmt.Errorf("namespace.yaml: %w", err)
	}
	namespace.Name = a.Namespace
	_, err = a.Client.CoreV1().Namespaces().Create(ctx, namespace,
		metav1.CreateOptions{FieldManager: manager, DryRun: a.dryRun})
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	} else if err != nil {
		return false, Explain(err, "creating namespace "+a.Namespace)
	}
	done := " created"
	if a.how.ServerDryRun {
		done = " would be created (server dry run); the rest can be checked once it is there"
	}
	a.say("namespace/" + a.Namespace + done)
	return true, nil
}

// credentialsKey is the key of the Secret with the buckets' keys that workers read.
const credentialsKey = "credentials"

// checkKeys fails if the Secret of the buckets' keys is there without the file that workers read. A
// Secret that is missing may come later, or not be needed.
func (a *applier) checkKeys(ctx context.Context) error {
	if a.m.Keys == "" {
		return nil
	}
	secret, err := a.Client.CoreV1().Secrets(a.Namespace).Get(ctx, a.m.Keys, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	} else if err != nil {
		return Explain(err, "looking for secret/"+a.m.Keys)
	}
	if _, has := secret.Data[credentialsKey]; has {
		return nil
	}
	return fmt.Errorf("secret/%[1]s has no key %[2]s, a file such as ~/.aws/credentials with the "+
		"region: kubectl -n %[3]s delete secret %[1]s, and kubectl -n %[3]s create secret generic "+
		"%[1]s --from-file=%[2]s=FILE", a.m.Keys, credentialsKey, a.Namespace)
}

// dryRunSuffix keeps the name of workers in a server-side dry run apart from the live workers'.
const dryRunSuffix = "-anew"

// makeRoom removes the workers of an ended run, because a Job's pods cannot be changed in place. It
// removes its coordinators too, because their observers would write its end over the new run's
// progress.
func (a *applier) makeRoom(ctx context.Context) error {
	job := a.m.Spec.Job
	old, err := a.findWorkers(ctx, job)
	if err != nil || old == nil {
		return err
	}
	if err := a.replaceable(old); err != nil {
		return err
	}
	if a.how.ServerDryRun { // under the old name the cluster would compare the two
		a.m.workers().SetName(a.m.workers().GetName() + dryRunSuffix)
		return nil
	}
	a.say(nameOf(old.object) + " of the earlier run is removed")
	if err := a.holdShared(ctx); err != nil {
		return err
	}
	if err := old.remove(ctx); err != nil {
		return err
	}
	coordinators, err := a.find(ctx, appsv1.SchemeGroupVersion.WithKind("Deployment"),
		job+"-"+Coordinator)
	if err != nil || coordinators == nil {
		return err
	}
	return coordinators.remove(ctx)
}

// replaceable fails if the workers have begun and have not ended. Workers that have not begun, for
// example because their image is missing, may be replaced.
func (a *applier) replaceable(old *workers) error {
	job := a.m.Spec.Job
	switch {
	case old.object.GetLabels()[labelJob] == "":
		return fmt.Errorf("%s exists and is not Rondo's: give another --job", nameOf(old.object))
	case old.object.GetDeletionTimestamp() != nil, !old.job.begun(), old.job.Ended():
		return nil
	case old.job.Suspended():
		return fmt.Errorf("job %s is suspended: %s goes on with it; to begin anew, %s first, or "+
			"give another --job", job, a.command("resume", job), a.command("delete", job))
	}
	where := ""
	if step := old.job.Progress().Step; step > 0 {
		where = fmt.Sprintf(" (step %d)", step)
	}
	return fmt.Errorf("job %s is running%s: see %s; %s ends it with a checkpoint; or give "+
		"another --job", job, where, a.command("status", job), a.command("stop", job))
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
