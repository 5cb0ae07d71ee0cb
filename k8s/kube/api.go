package kube

import (
	"context"
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	discover "k8s.io/client-go/discovery"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// API has a client for each API group that commands use. kubernetes.Interface has 50 more, which
// would be part of every build.
type API interface {
	Discovery() discover.DiscoveryInterface
	AppsV1() appsv1.AppsV1Interface
	AuthorizationV1() authorizationv1.AuthorizationV1Interface
	BatchV1() batchv1.BatchV1Interface
	CoreV1() corev1.CoreV1Interface
	PolicyV1() policyv1.PolicyV1Interface
}

// apiClients implements API for a server.
type apiClients struct {
	discovery     *discover.DiscoveryClient
	apps          *appsv1.AppsV1Client
	authorization *authorizationv1.AuthorizationV1Client
	batch         *batchv1.BatchV1Client
	core          *corev1.CoreV1Client
	policy        *policyv1.PolicyV1Client
}

func (a *apiClients) Discovery() discover.DiscoveryInterface { return a.discovery }
func (a *apiClients) AppsV1() appsv1.AppsV1Interface         { return a.apps }
func (a *apiClients) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return a.authorization
}
func (a *apiClients) BatchV1() batchv1.BatchV1Interface    { return a.batch }
func (a *apiClients) CoreV1() corev1.CoreV1Interface       { return a.core }
func (a *apiClients) PolicyV1() policyv1.PolicyV1Interface { return a.policy }

// newAPI makes the clients. They share one transport and one limit of requests per second.
func newAPI(of *rest.Config) (API, error) {
	config := *of
	over, err := rest.HTTPClientFor(&config)
	if err != nil {
		return nil, err
	}
	var a apiClients
	var failed [6]error
	a.discovery, failed[0] = discover.NewDiscoveryClientForConfigAndClient(&config, over)
	a.apps, failed[1] = appsv1.NewForConfigAndClient(&config, over)
	a.authorization, failed[2] = authorizationv1.NewForConfigAndClient(&config, over)
	a.batch, failed[3] = batchv1.NewForConfigAndClient(&config, over)
	a.core, failed[4] = corev1.NewForConfigAndClient(&config, over)
	a.policy, failed[5] = policyv1.NewForConfigAndClient(&config, over)
	if err := errors.Join(failed[:]...); err != nil {
		return nil, err
	}
	return &a, nil
}

// listWatcher is the part of a typed client that watchObjects needs.
type listWatcher[List runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (List, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// watchObjects calls changed for each selected object of a client, and again for each one that
// changes or disappears, one call at a time, until stop. It reconnects when the connection breaks,
// and reports errors to troubled unless that is nil. The example gives the objects' type.
func watchObjects[List, Object runtime.Object](ctx context.Context, client listWatcher[List],
	example Object, selected metav1.ListOptions, changed func(object Object, gone bool),
	troubled func(error)) (stop func()) {
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = selected.LabelSelector, selected.FieldSelector
		return o
	}
	report := func(err error) {
		if err != nil && ctx.Err() == nil && troubled != nil {
			troubled(err)
		}
	}
	tell := func(object any, gone bool) {
		if last, unseen := object.(cache.DeletedFinalStateUnknown); unseen {
			object = last.Obj
		}
		if o, is := object.(Object); is {
			changed(o, gone)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (
				runtime.Object, error) {
				list, err := client.List(ctx, with(o))
				report(err)
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (
				watch.Interface, error) {
				changes, err := client.Watch(ctx, with(o))
				report(err)
				return changes, err
			},
		},
		ObjectType: example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { tell(object, false) },
			UpdateFunc: func(_, object any) { tell(object, false) },
			DeleteFunc: func(object any) { tell(object, true) },
		},
	})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
