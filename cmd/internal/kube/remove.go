package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rondo/cmd/internal/app"
)

// Delete says how a job is deleted.
type Delete struct {
	Force    bool // although it runs or is suspended
	WithEtcd bool // and what the namespace's jobs share, if no other job is there
	Timeout  time.Duration
	Say      func(string) // told of what happens, one line each

	forgotten bool // by etcd: its data goes with it
}

// Delete removes a job's objects and what etcd holds of it. Checkpoints stay where they are. One
// that has not ended is refused without Force: rondo stop saves it first. Where the namespace
// itself is being deleted there is nothing left to save, and a Job that waits for pods which that
// namespace refuses would hold it up for ever.
func (c *Cluster) Delete(ctx context.Context, job string, how Delete) error {
	ctx, cancel := context.WithTimeoutCause(ctx, how.Timeout, fmt.Errorf("job %s is not gone "+
		"after %v: the cluster goes on deleting it; see kubectl get pods -l %s=%s", job,
		how.Timeout, labelJob, job))
	defer cancel()
	o, err := c.objects(false)
	if err != nil {
		return err
	}
	leaving := c.leaving(ctx)
	how.Force = how.Force || leaving
	how.forgotten = how.WithEtcd || leaving
	if how.WithEtcd {
		if err := c.othersThan(ctx, job); err != nil {
			return err
		}
	}
	some, err := c.deleteJob(ctx, o, job, how)
	if err != nil {
		return err
	}
	if how.WithEtcd {
		shared, err := c.deleteShared(ctx, o, how)
		if err != nil {
			return err
		}
		some = some || shared
	}
	if !some {
		return app.Usagef("namespace %s has nothing of a job %s: `%s` lists the jobs that are "+
			"there", c.Namespace, job, c.command("status", ""))
	}
	return nil
}

// leaving says whether the namespace is being deleted.
func (c *Cluster) leaving(ctx context.Context) bool {
	namespace, err := c.Client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	return err == nil && namespace.DeletionTimestamp != nil // who may not look sees none
}

// othersThan refuses if the namespace has other jobs, which need its etcd.
func (c *Cluster) othersThan(ctx context.Context, job string) error {
	all, err := c.Client.AppsV1().Deployments(c.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labelJob})
	if err != nil {
		return Explain(err, "looking for other jobs")
	}
	var others []string
	for _, d := range all.Items {
		if name := d.Labels[labelJob]; name != job && usesOwnEtcd(&d) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("--with-etcd: other jobs of namespace %s use its etcd: %s; delete them "+
			"first, or leave out --with-etcd", c.Namespace, strings.Join(others, ", "))
	}
	return nil
}

// deleteJob removes the workers first, while there is still a coordinator to hand their state to,
// then the coordinators, which would submit the job anew where etcd holds nothing of it, then what
// etcd holds, then all the rest. It says whether there was anything.
func (c *Cluster) deleteJob(
	ctx context.Context, o *objects, job string, how Delete,
) (some bool, err error) {
	resources, workers, err := c.findWorkers(ctx, o, job)
	if err != nil {
		return false, err
	}
	if workers != nil {
		if !endedObject(workers) && begun(workers) && !how.Force &&
			workers.GetDeletionTimestamp() == nil {
			return false, fmt.Errorf("job %s has not ended: %s ends it with a checkpoint; --force "+
				"deletes it as it is", job, c.command("stop", job))
		}
		if err := remove(ctx, resources, workers); err != nil {
			return false, err
		}
		how.Say(nameOf(workers) + " deleted")
		some = true
	}
	own, kinds := labelJob+"="+job, jobKinds()
	led, err := c.deleteAll(ctx, o, own, kinds[:1], how)
	if err != nil {
		return some, err
	}
	if !how.forgotten {
		if err := c.forget(ctx, job, workers); err != nil {
			how.Say(fmt.Sprintf("note: what etcd holds of job %s stays: %v", job, err))
		}
	}
	rest, err := c.deleteAll(ctx, o, own, kinds[1:], how)
	return some || led || rest, err
}

// forget removes what etcd holds of a job, so that the next of its name begins with nothing.
func (c *Cluster) forget(ctx context.Context, job string,
	workers *unstructured.Unstructured) error {
	if workers == nil {
		return nil
	}
	spec := workers.Object
	if workers.GetKind() == "JobSet" {
		spec = templateOf(workers)
	}
	j := &Job{Name: job, Workers: &batchv1.Job{}}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, j.Workers); err != nil {
		return err
	}
	way, err := c.Way(ctx, j)
	if err != nil {
		return err
	}
	defer way.Close()
	store, err := way.Store(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	return store.Forget(ctx)
}

// jobKinds are the kinds of a job's objects but its workers: the coordinators', and then who uses
// others before those.
func jobKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("Deployment"),
		corev1.SchemeGroupVersion.WithKind("Service"),
		policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
		networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
		rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
		rbacv1.SchemeGroupVersion.WithKind("Role"),
		corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
		corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	}
}

// deleteShared removes the namespace's etcd with its data, and what else its jobs share.
func (c *Cluster) deleteShared(ctx context.Context, o *objects, how Delete) (bool, error) {
	kinds := slices.Concat([]schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("StatefulSet")}, jobKinds())
	for _, optional := range []struct{ group, version, kind string }{
		{"cert-manager.io", "v1", "Certificate"}, {"cert-manager.io", "v1", "Issuer"},
		{"monitoring.coreos.com", "v1", "ServiceMonitor"},
		{"monitoring.coreos.com", "v1", "PodMonitor"},
	} {
		kinds = append(kinds, schema.GroupVersionKind{Group: optional.group,
			Version: optional.version, Kind: optional.kind})
	}
	some, err := c.deleteAll(ctx, o, labelManagedBy+"="+manager+",!"+labelJob, kinds, how)
	if err != nil {
		return some, err
	}
	_, err = c.Client.AppsV1().StatefulSets(c.Namespace).Get(ctx, etcdName, metav1.GetOptions{})
	switch {
	case err == nil:
		how.Say("statefulset/" + etcdName + " and its volumes stay: rondo submit has not made " +
			"it, so delete it as it was made (kubectl delete -k)")
		return some, nil
	case !apierrors.IsNotFound(err):
		return some, Explain(err, "looking for statefulset/"+etcdName)
	}
	return some, c.removeClaims(ctx, func(*corev1.PersistentVolumeClaim) bool { return true })
}

// deleteAll removes all objects of some kinds that a selector chooses, and waits until they are
// gone with what they own.
func (c *Cluster) deleteAll(ctx context.Context, o *objects, selector string,
	kinds []schema.GroupVersionKind, how Delete,
) (some bool, err error) {
	for _, kind := range kinds {
		like := &unstructured.Unstructured{}
		like.SetGroupVersionKind(kind)
		like.SetNamespace(c.Namespace)
		resources, err := o.of(like)
		if meta.IsNoMatchError(err) {
			continue // the cluster has no such kind, so none of it
		} else if err != nil {
			return some, Explain(err, "deleting objects of kind "+kind.Kind)
		}
		found, err := resources.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return some, Explain(err, "listing objects of kind "+kind.Kind)
		}
		for i := range found.Items {
			if err := remove(ctx, resources, &found.Items[i]); err != nil {
				return some, err
			}
			how.Say(nameOf(&found.Items[i]) + " deleted")
			some = true
		}
	}
	return some, nil
}
