package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rondo/cmd/internal/app"
)

// Limits of what is told of changes.
const (
	changesAtOnce = time.Second      // changes this close together are told once
	changesLook   = 15 * time.Second // to look even where nothing was heard: ages, and events
	changesLost   = 2 * time.Minute  // of looks that fail, before that is the end
)

// Watch calls look now, and again whenever something of the jobs of the namespace (everywhere: of
// all namespaces) has changed, until that returns done, or ctx ends. troubled hears of a cluster
// that does not answer, which is borne with for a while, unless it has never answered.
func (c *Cluster) Watch(ctx context.Context, everywhere bool,
	look func(context.Context) (done bool, err error), troubled func(error)) error {
	namespace := c.Namespace
	if everywhere {
		namespace = metav1.NamespaceAll
	}
	changed := make(chan struct{}, 1)
	stop, err := c.notify(ctx, namespace, troubled, func() {
		select {
		case changed <- struct{}{}:
		default: // it is known already
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	again := time.NewTicker(changesLook)
	defer again.Stop()
	for seen := (time.Time{}); ; {
		done, err := look(ctx)
		var wrong *app.UsageError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done:
			return err
		case err == nil:
			seen = time.Now()
		case errors.As(err, &wrong) || time.Since(seen) > changesLost:
			return err
		default:
			troubled(err)
		}
		if err := wait(ctx, changesAtOnce); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-again.C:
		}
	}
}

// notify calls changed when a Job, a pod or a StatefulSet of Rondo's has changed, until stop.
func (c *Cluster) notify(ctx context.Context, namespace string, troubled func(error),
	changed func()) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0,
		informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = selecting("", "").LabelSelector
		}))
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	}
	for _, informer := range []cache.SharedIndexInformer{factory.Batch().V1().Jobs().Informer(),
		factory.Core().V1().Pods().Informer(), factory.Apps().V1().StatefulSets().Informer()} {
		err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context,
			_ *cache.Reflector, err error) {
			if ctx.Err() == nil {
				troubled(Explain(err, "watching the job"))
			}
		})
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			cancel()
			return nil, err
		}
	}
	var running sync.WaitGroup
	factory.Start(ctx.Done())
	running.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	return func() {
		cancel()
		running.Wait()
	}, nil
}
