package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// goneEvery is the time between two looks whether an object is gone.
const goneEvery = 200 * time.Millisecond

// objects reads and writes a cluster's objects of any kind.
type objects struct {
	*Cluster
	client dynamic.Interface
	mapper meta.RESTMapper
	dryRun []string
}

// A stored is an object of the cluster, with the client of its kind.
type stored struct {
	from   dynamic.ResourceInterface
	object *unstructured.Unstructured
}

// workers is the object that runs a job's workers: a Job, or a JobSet that makes the Job.
type workers struct {
	*stored
	job *Job // an empty one if the JobSet has not made it
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

// of returns the client for objects of a kind in a namespace.
func (o *objects) of(
	kind schema.GroupVersionKind, namespace string,
) (dynamic.ResourceInterface, error) {
	mapping, err := o.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	resources := o.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return resources, nil
	}
	return resources.Namespace(namespace), nil
}

// apply applies an object as the field manager rondo. A field that somebody else has set since is a
// conflict; it is not overwritten.
func (o *objects) apply(ctx context.Context, object *unstructured.Unstructured) error {
	return o.applyAs(ctx, manager, object)
}

func (o *objects) applyAs(ctx context.Context, as string, object *unstructured.Unstructured) error {
	resources, err := o.of(object.GroupVersionKind(), object.GetNamespace())
	if err == nil {
		_, err = resources.Apply(ctx, object.GetName(), object,
			metav1.ApplyOptions{FieldManager: as, DryRun: o.dryRun})
	}
	return Explain(err, "applying "+nameOf(object))
}

// find returns the object of that kind and name, or nil.
func (o *objects) find(
	ctx context.Context, kind schema.GroupVersionKind, name string,
) (*stored, error) {
	from, err := o.of(kind, o.Namespace)
	if meta.IsNoMatchError(err) {
		return nil, nil // the cluster has no such kind, so none of it
	}
	var object *unstructured.Unstructured
	if err == nil {
		object, err = from.Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, Explain(err, "looking for "+strings.ToLower(kind.Kind)+"/"+name)
	}
	return &stored{from, object}, nil
}

// findWorkers returns the workers of a job, or nil.
func (o *objects) findWorkers(ctx context.Context, job string) (*workers, error) {
	name, kind := job+"-"+Worker, batchv1.SchemeGroupVersion.WithKind("Job")
	found, err := o.find(ctx, kind, name)
	inner := found
	if err == nil && found == nil {
		if found, err = o.find(ctx, jobSetKind(), name); err == nil && found != nil {
			inner, err = o.find(ctx, kind, name+"-ring-0")
		}
	}
	if err != nil || found == nil {
		return nil, err
	}
	typed := &batchv1.Job{}
	if inner != nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(inner.object.Object, typed)
	}
	return &workers{found, &Job{job, typed, o.Cluster}}, err
}

func jobSetKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind("jobset.x-k8s.io/v1alpha2", "JobSet")
}

// nameOf returns kubectl's name of an object: kind/name.
func nameOf(object *unstructured.Unstructured) string {
	return strings.ToLower(object.GetKind()) + "/" + object.GetName()
}

// remove deletes an object and the pods that it owns, and waits until they are gone.
func (s *stored) remove(ctx context.Context) error {
	if err := s.delete(ctx); err != nil {
		return err
	}
	return s.gone(ctx)
}

// delete begins to delete an object. One that owns pods stays until they are gone.
func (s *stored) delete(ctx context.Context) error {
	policy := metav1.DeletePropagationBackground
	switch s.object.GetKind() {
	case "Job", "JobSet", "Deployment", "StatefulSet":
		policy = metav1.DeletePropagationForeground
	}
	err := s.from.Delete(ctx, s.object.GetName(), metav1.DeleteOptions{PropagationPolicy: &policy})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return Explain(err, "deleting "+nameOf(s.object))
}

// gone waits until a deleted object has disappeared. If ctx ends before, its error names the object
// and the likely cause.
func (s *stored) gone(ctx context.Context) error {
	for {
		there, err := s.from.Get(ctx, s.object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && there.GetUID() != s.object.GetUID():
			return nil
		case err != nil && ctx.Err() == nil:
			return Explain(err, "waiting for "+nameOf(s.object)+" to go")
		}
		err = wait(ctx, goneEvery)
		if errors.Is(err, context.Canceled) {
			return err
		} else if err != nil {
			return fmt.Errorf("%w; %s still waits for its pods to end: of one whose node is lost, "+
				"kubectl delete node NODE, or kubectl delete pod POD --force where that node is "+
				"off for good", err, nameOf(s.object))
		}
	}
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
