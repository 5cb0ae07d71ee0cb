package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// follow reads these pods and later ones, all at once, until the job has ended; without a job,
// until ctx ends.
func (r *logReader) follow(ctx context.Context, job *Job, first []*corev1.Pod,
	all []corev1.Pod) error {
	for i := range all {
		r.known[all[i].UID] = true // of earlier pods
	}
	for _, pod := range first {
		delete(r.known, pod.UID)
	}
	begun := time.Now()
	stop := watchObjects(ctx, r.cluster.Client.CoreV1().Pods(r.cluster.Namespace),
		&corev1.Pod{}, r.selection(), func(pod *corev1.Pod, gone bool) {
			if !gone {
				r.take(ctx, pod, begun)
			}
		}, nil)
	var err error
	if job == nil {
		<-ctx.Done()
	} else {
		err = job.follow(ctx, func(now *Job) (bool, error) { return now.Ended(), nil })
	}
	stop()
	over := err == nil && ctx.Err() == nil
	if over { // wait for the last lines, but not for coordinators, which stay
		late := time.AfterFunc(logFarewell, func() { r.end(nil) })
		defer late.Stop()
	} else {
		r.end(err)
	}
	r.running.Wait()
	cause := context.Cause(ctx)
	if over && errors.Is(cause, context.Canceled) {
		return nil
	}
	return cause
}

// take starts to read a pod's log if it has one.
func (r *logReader) take(ctx context.Context, pod *corev1.Pod, begun time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[pod.UID] || !r.wants(pod) || !hasLog(pod, r.container(pod)) || ctx.Err() != nil {
		return
	}
	if r.streams >= maxLogStreams {
		if !r.full {
			r.full = true
			r.how.Note(fmt.Sprintf("only %d pods are followed at once: --index follows one",
				maxLogStreams))
		}
		return
	}
	r.known[pod.UID] = true
	r.streams++
	r.running.Go(func() {
		err := r.stream(ctx, pod, begun)
		r.mu.Lock()
		r.streams--
		r.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			r.how.Note(err.Error())
		}
	})
}

// stream reads a pod's log to its end. It reopens broken connections and follows restarted
// containers.
func (r *logReader) stream(ctx context.Context, pod *corev1.Pod, begun time.Time) error {
	options := r.options(pod, true)
	if pod.CreationTimestamp.After(begun) { // all of a pod that came later
		options.TailLines, options.SinceSeconds = nil, nil
	}
	last, pause, noted := time.Time{}, logAgain, false
	for {
		until, err := r.copy(ctx, pod, options, last)
		if until.After(last) {
			last, pause, noted = until, logAgain, false
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		over, gone := r.over(ctx, pod)
		switch {
		case gone, over && err == nil:
			return nil
		case over && pause > logAgain: // it was tried before
			return err
		}
		if err != nil && !noted {
			noted = true
			r.how.Note(fmt.Sprintf("%v; trying again", err))
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, logAgainMax)
		if !last.IsZero() {
			options.TailLines, options.SinceSeconds = nil, nil
			options.SinceTime = &metav1.Time{Time: last}
		}
	}
}

// over reports whether a pod's log has an end, and whether the log is gone with the pod.
func (r *logReader) over(ctx context.Context, pod *corev1.Pod) (over, gone bool) {
	now, err := r.cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name,
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		return true, true
	case err != nil:
		return false, false
	}
	return now.Status.Phase == corev1.PodSucceeded || now.Status.Phase == corev1.PodFailed, false
}
