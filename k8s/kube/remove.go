package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"rondo/internal/app"
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
	if err == nil && how.WithEtcd {
		err = c.removeEtcdData(ctx, how)
	}
	if err != nil {
		return err
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
		if name := d.Labels[labelJob]; name != job && usesOwnEtcd(&d.Spec.Template) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("--with-etcd: other jobs of namespace %s use its etcd: %s; delete them "+
			"first, or leave out --with-etcd", c.Namespace, strings.Join(others, ", "))
	}
	return nil
}

// deleteJob removes what etcd holds of a job, and then its objects, all at once. Workers that still
// train then go first, while a coordinator can plan rings without them. It says whether there was
// anything.
func (c *Cluster) deleteJob(
	ctx context.Context, o *objects, job string, how Delete,
) (some bool, err error) {
	resources, workers, err := c.findWorkers(ctx, o, job)
	if err != nil {
		return false, err
	}
	all, err := c.find(ctx, o, labelJob+"="+job, jobKinds())
	if err == nil && how.WithEtcd {
		var shared []stored
		shared, err = c.find(ctx, o, labelManagedBy+"="+manager+",!"+labelJob, sharedKinds())
		all = append(shared, all...)
	}
	if err != nil {
		return false, err
	}
	some = workers != nil || len(all) > 0
	if workers != nil {
		trains := !endedObject(workers) && begun(workers)
		if trains && !how.Force && workers.GetDeletionTimestamp() == nil {
			return some, fmt.Errorf("job %s has not ended: %s ends it with a checkpoint; --force "+
				"deletes it as it is", job, c.command("stop", job))
		}
		work, led := stored{resources, workers}, slices.ContainsFunc(all, stored.leads)
		if !how.forgotten {
			if err := c.forget(ctx, job, led); err != nil {
				how.Say(fmt.Sprintf("note: what etcd holds of job %s stays: %v", job, err))
			}
		}
		if trains && led {
			if err := c.removeAll(ctx, []stored{work}, how); err != nil {
				return some, err
			}
		} else {
			all = append(all, work)
		}
		if trains && !led {
			c.hurry(ctx, selecting(job, Worker))
		}
	}
	return some, c.removeAll(ctx, all, how)
}

// shortGrace is how many seconds pods have to end that have nothing to save.
const shortGrace = 1

// hurry shortens the grace period of pods: of workers that nobody leads, which would wait in vain
// for a ring without them, and of etcd's members whose data goes, since their leader would wait for
// another one to take over. A user who may not delete pods waits with them.
func (c *Cluster) hurry(ctx context.Context, pods metav1.ListOptions) {
	grace := int64(shortGrace)
	_ = c.Client.CoreV1().Pods(c.Namespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: &grace}, pods)
}

// stored is an object, and where it is.
type stored struct {
	from   dynamic.ResourceInterface
	object *unstructured.Unstructured
}

// leads says whether an object is the coordinators of a job, and one of them is ready.
func (s stored) leads() bool {
	ready, _, _ := unstructured.NestedInt64(s.object.Object, "status", "readyReplicas")
	return s.object.GetKind() == "Deployment" && ready > 0
}

// requestsAtOnce is how many requests of one deletion are on their way at a time.
const requestsAtOnce = 16

// find returns the objects of some kinds that a selector chooses.
func (c *Cluster) find(ctx context.Context, o *objects, selector string,
	kinds []schema.GroupVersionKind,
) ([]stored, error) {
	found := make([][]stored, len(kinds))
	var group errgroup.Group
	group.SetLimit(requestsAtOnce)
	for i, kind := range kinds {
		group.Go(func() error {
			like := &unstructured.Unstructured{}
			like.SetGroupVersionKind(kind)
			like.SetNamespace(c.Namespace)
			resources, err := o.of(like)
			if meta.IsNoMatchError(err) {
				return nil // the cluster has no such kind, so none of it
			} else if err != nil {
				return Explain(err, "looking for objects of kind "+kind.Kind)
			}
			list, err := resources.List(ctx, metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				return Explain(err, "listing objects of kind "+kind.Kind)
			}
			for j := range list.Items {
				found[i] = append(found[i], stored{resources, &list.Items[j]})
			}
			return nil
		})
	}
	err := group.Wait()
	return slices.Concat(found...), err
}

// removeAll deletes objects at once, and waits until all are gone with what they own. One that
// cannot be deleted does not keep the others.
func (c *Cluster) removeAll(ctx context.Context, all []stored, how Delete) error {
	var group errgroup.Group
	group.SetLimit(requestsAtOnce)
	var saying sync.Mutex
	for _, each := range all {
		group.Go(func() error {
			if each.object.GetKind() == "StatefulSet" { // etcd's: it is deleted before its pods end
				c.hurry(ctx, selecting("", Etcd))
			}
			if err := remove(ctx, each.from, each.object); err != nil {
				return err
			}
			saying.Lock()
			defer saying.Unlock()
			how.Say(nameOf(each.object) + " deleted")
			return nil
		})
	}
	return group.Wait()
}

// jobKinds are the kinds of a job's objects but its workers. The coordinators come first, because
// they take longest to end.
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

// sharedKinds are the kinds of what the jobs of a namespace share, its etcd first.
func sharedKinds() []schema.GroupVersionKind {
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
	return kinds
}

// removeEtcdData removes the volumes of the namespace's etcd. An etcd that rondo submit has not
// made is still there, and keeps them.
func (c *Cluster) removeEtcdData(ctx context.Context, how Delete) error {
	_, err := c.Client.AppsV1().StatefulSets(c.Namespace).Get(ctx, etcdName, metav1.GetOptions{})
	switch {
	case err == nil:
		how.Say("statefulset/" + etcdName + " and its volumes stay: rondo submit has not made " +
			"it, so delete it as it was made (kubectl delete -k)")
		return nil
	case !apierrors.IsNotFound(err):
		return Explain(err, "looking for statefulset/"+etcdName)
	}
	return c.removeClaims(ctx, func(*corev1.PersistentVolumeClaim) bool { return true })
}
