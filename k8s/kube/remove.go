package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rondo/internal/app"
)

// Delete holds the options of Cluster.Delete.
type Delete struct {
	Force    bool // also a job that runs or is suspended
	WithEtcd bool // also the objects that jobs share, if there is no other job
	Timeout  time.Duration
	Say      func(string) // receives a line about each change
}

// deletion deletes one job.
type deletion struct {
	*objects
	job string
	how Delete
	// keepsNothing: etcd is deleted too, so it need not forget the job.
	keepsNothing bool
}

// Delete removes a job's objects and its keys in etcd. Checkpoints stay. A job that has not ended
// is refused without Force, because rondo stop would save it first. In a namespace that is being
// deleted nothing can be saved, so Force is implied: there a Job would wait forever for pods that
// the namespace refuses.
func (c *Cluster) Delete(ctx context.Context, job string, how Delete) error {
	ctx, cancel := context.WithTimeoutCause(ctx, how.Timeout, fmt.Errorf("job %s is not gone "+
		"after %v: the cluster goes on deleting it; see kubectl get pods -l %s=%s", job,
		how.Timeout, labelJob, job))
	defer cancel()
	if err := refuseOwned(ctx, c, job, "delete rondojob/"+job); err != nil {
		return err
	}
	o, err := c.objects(false)
	if err != nil {
		return err
	}
	leaving := c.leaving(ctx)
	how.Force = how.Force || leaving
	d := &deletion{objects: o, job: job, how: how, keepsNothing: how.WithEtcd || leaving}
	if how.WithEtcd {
		if err := d.checkOthers(ctx); err != nil {
			return err
		}
	}
	some, err := d.deleteJob(ctx)
	if err == nil && how.WithEtcd {
		err = d.removeEtcdData(ctx)
	}
	if err != nil {
		return err
	}
	if !some {
		return app.Usagef("namespace %s has no object of job %s: `%s` lists the jobs "+
			"there", c.Namespace, job, c.command("status", ""))
	}
	return nil
}

// leaving reports whether the namespace is being deleted.
func (c *Cluster) leaving(ctx context.Context) bool {
	namespace, err := c.Client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	return err == nil && namespace.DeletionTimestamp != nil // false if this user may not read it
}

// checkOthers fails if other jobs of the namespace use its etcd.
func (d *deletion) checkOthers(ctx context.Context) error {
	all, err := d.Client.AppsV1().Deployments(d.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: labelJob})
	if err != nil {
		return Explain(err, "looking for other jobs")
	}
	var others []string
	for i := range all.Items {
		other := &all.Items[i]
		if name := other.Labels[labelJob]; name != d.job && usesOwnEtcd(&other.Spec.Template) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("--with-etcd: other jobs of namespace %s use its etcd: %s; delete them "+
			"first, or leave out --with-etcd", d.Namespace, strings.Join(others, ", "))
	}
	return nil
}

// deleteJob removes the job's keys in etcd, and then its objects, all at once. some reports whether
// there was anything.
func (d *deletion) deleteJob(ctx context.Context) (some bool, err error) {
	work, err := d.findWorkers(ctx, d.job)
	if err != nil {
		return false, err
	}
	all, err := d.list(ctx, labelJob+"="+d.job, jobKinds())
	if err == nil && d.how.WithEtcd {
		var shared []*stored
		shared, err = d.list(ctx, labelManagedBy+"="+manager+",!"+labelJob, sharedKinds())
		all = append(shared, all...)
	}
	if err != nil {
		return false, err
	}
	if work == nil {
		return len(all) > 0, d.removeAll(ctx, all)
	}
	trains := !work.job.Ended() && work.job.begun()
	if trains && !d.how.Force && work.object.GetDeletionTimestamp() == nil {
		return true, fmt.Errorf("job %s has not ended: %s ends it with a checkpoint; --force "+
			"deletes it as it is", d.job, d.command("stop", d.job))
	}
	led := slices.ContainsFunc(all, (*stored).leads)
	if !d.keepsNothing {
		if err := d.forget(ctx, work.job, led); err != nil {
			d.how.Say(fmt.Sprintf("note: the keys of job %s stay in etcd: %v", d.job, err))
		}
	}
	if trains { // they would wait for a coordinator, which goes with them
		d.hurry(ctx, selecting(d.job, Worker))
	}
	return true, d.removeAll(ctx, append(all, work.stored))
}

// forget has an observer remove the job's keys in etcd, so that the next job of this name starts
// fresh. A job that has not ended is stopped first.
func (d *deletion) forget(ctx context.Context, job *Job, led bool) error {
	switch {
	case job.Progress().Phase == "":
		return nil // no coordinator has stored it
	case !led:
		return errors.New("no coordinator of it is ready to remove them")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, forgetTimeout, fmt.Errorf("its observers have "+
		"not removed them within %v", forgetTimeout))
	defer cancel()
	_, err := d.WorkerJob(job.Workers.Name).patch(ctx,
		map[string]any{annotations + "forget": toForget}, manager)
	if err != nil {
		return Explain(err, "annotating job "+d.job)
	}
	return job.follow(ctx, func(now *Job) (bool, error) {
		return now.Workers.Annotations[annotations+"forget"] == forgotten, nil
	})
}

// shortGrace is the grace period, in seconds, of pods that have nothing to save.
const shortGrace = 1

// hurry shortens the grace period of pods. It serves workers of a job that is not saved, which
// would wait in vain for a ring without them, and etcd members whose data is deleted too, whose
// leader would wait for a successor. If this user may not delete pods, they take their usual time.
func (d *deletion) hurry(ctx context.Context, pods metav1.ListOptions) {
	grace := int64(shortGrace)
	_ = d.Client.CoreV1().Pods(d.Namespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: &grace}, pods)
}

// leads reports whether an object is a Deployment of coordinators with a ready pod.
func (s *stored) leads() bool {
	ready, _, _ := unstructured.NestedInt64(s.object.Object, "status", "readyReplicas")
	return s.object.GetKind() == "Deployment" && ready > 0
}

// list returns the selected objects of some kinds.
func (o *objects) list(
	ctx context.Context, selector string, kinds []schema.GroupVersionKind,
) ([]*stored, error) {
	var found []*stored
	for _, kind := range kinds {
		from, err := o.of(kind, o.Namespace)
		if meta.IsNoMatchError(err) {
			continue // the cluster has no such kind, so none of it
		}
		var list *unstructured.UnstructuredList
		if err == nil {
			list, err = from.List(ctx, metav1.ListOptions{LabelSelector: selector})
		}
		if kind.Kind == "Secret" && apierrors.IsForbidden(err) {
			continue // whoever may not list them has made none
		}
		if err != nil {
			return nil, Explain(err, "listing objects of kind "+kind.Kind)
		}
		for i := range list.Items {
			found = append(found, &stored{from, &list.Items[i]})
		}
	}
	return found, nil
}

// removeAll deletes objects at once, and waits until they are gone with all that they own. One
// failure does not stop the others.
func (d *deletion) removeAll(ctx context.Context, all []*stored) error {
	failed := make([]error, len(all))
	for i, each := range all {
		if each.object.GetKind() == "StatefulSet" { // etcd's: it is deleted before its pods end
			d.hurry(ctx, selecting("", Etcd))
		}
		failed[i] = each.delete(ctx)
	}
	for i, each := range all {
		if failed[i] == nil {
			failed[i] = each.gone(ctx)
		}
		if failed[i] == nil {
			d.how.Say(nameOf(each.object) + " deleted")
		}
	}
	return cmp.Or(failed...)
}

// kinds returns the kinds that lines of "group/version Kind" name.
func kinds(lines ...string) []schema.GroupVersionKind {
	var all []schema.GroupVersionKind
	for _, line := range lines {
		version, kind, _ := strings.Cut(line, " ")
		all = append(all, schema.FromAPIVersionAndKind(version, kind))
	}
	return all
}

// jobKinds returns the kinds of a job's objects, except its workers. Deployments come first,
// because coordinators take longest to end.
func jobKinds() []schema.GroupVersionKind {
	return kinds("apps/v1 Deployment", "v1 Service", "policy/v1 PodDisruptionBudget",
		"networking.k8s.io/v1 NetworkPolicy", "rbac.authorization.k8s.io/v1 RoleBinding",
		"rbac.authorization.k8s.io/v1 Role", "v1 ServiceAccount", "v1 ConfigMap", "v1 Secret",
		"cert-manager.io/v1 Certificate")
}

// sharedKinds returns the kinds of the objects that a namespace's jobs share, etcd first.
func sharedKinds() []schema.GroupVersionKind {
	return slices.Concat(kinds("apps/v1 StatefulSet"), jobKinds(), kinds(
		"cert-manager.io/v1 Issuer", "monitoring.coreos.com/v1 ServiceMonitor",
		"monitoring.coreos.com/v1 PodMonitor"))
}

// removeEtcdData removes the volumes of the namespace's etcd. If the etcd still exists, rondo
// submit did not make it, and its volumes stay.
func (d *deletion) removeEtcdData(ctx context.Context) error {
	_, err := d.Client.AppsV1().StatefulSets(d.Namespace).Get(ctx, etcdName, metav1.GetOptions{})
	switch {
	case err == nil:
		d.how.Say("statefulset/" + etcdName + " and its volumes stay: rondo submit did not make " +
			"it; delete it as it was made (kubectl delete -k)")
		return nil
	case !apierrors.IsNotFound(err):
		return Explain(err, "looking for statefulset/"+etcdName)
	}
	return d.removeClaims(ctx, func(*corev1.PersistentVolumeClaim) bool { return true })
}
