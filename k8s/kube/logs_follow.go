package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// logFollower follows the logs of all pods of a job at once.
type logFollower struct {
	*logReader
	end     context.CancelCauseFunc
	running sync.WaitGroup

	mu      sync.Mutex
	known   map[types.UID]bool // read, being read, or not to be read
	streams int
	full    bool // somebody was told that there are too many
}

// follow reads these pods and those that come, until the job has ended; without a job, until ctx
// ends.
func (r *logReader) follow(ctx context.Context, job *Job, first []*corev1.Pod,
	all []corev1.Pod) error {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &logFollower{logReader: r, end: cancel, known: map[types.UID]bool{}}
	for i := range all {
		f.known[all[i].UID] = true // of earlier pods
	}
	for _, pod := range first {
		delete(f.known, pod.UID)
	}
	var line sync.Mutex
	say := r.how.Line
	f.how.Line = func(source LogSource, text string) error {
		line.Lock()
		defer line.Unlock()
		return say(source, text)
	}
	begun := time.Now()
	stop, err := watchObjects(ctx, r.cluster.Client.CoreV1().Pods(r.cluster.Namespace),
		&corev1.Pod{}, r.selection(), func(pod *corev1.Pod, gone bool) {
			if !gone {
				f.take(ctx, pod, begun)
			}
		}, nil)
	if err != nil {
		cancel(nil)
		return err
	}
	if job == nil {
		<-ctx.Done()
	} else {
		err = r.cluster.follow(ctx, job, func(now *Job) (bool, error) { return now.Ended(), nil })
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	stop()
	if err == nil {
		err = f.lastLines(ctx)
	}
	cancel(nil)
	f.running.Wait()
	return err
}

// lastLines waits for the last lines of a job that has ended.
func (f *logFollower) lastLines(ctx context.Context) error {
	read := make(chan struct{})
	go func() { // ends when follow has ended the streams, at the latest
		f.running.Wait()
		close(read)
	}()
	late := time.NewTimer(logFarewell)
	defer late.Stop()
	select {
	case <-read:
	case <-late.C: // a coordinator stays
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// take begins to read a pod's log when there is one.
func (f *logFollower) take(ctx context.Context, pod *corev1.Pod, begun time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known[pod.UID] || !f.wants(pod) || !hasLog(pod, f.container(pod)) || ctx.Err() != nil {
		return
	}
	if f.streams >= maxLogStreams {
		if !f.full {
			f.full = true
			f.how.Note(fmt.Sprintf("only %d pods are followed at once: --index follows one",
				maxLogStreams))
		}
		return
	}
	f.known[pod.UID] = true
	f.streams++
	f.source(pod) // gives it its number
	f.running.Go(func() {
		err := f.stream(ctx, pod, begun)
		f.mu.Lock()
		f.streams--
		f.mu.Unlock()
		var line lineError
		switch {
		case errors.As(err, &line):
			f.end(line.error)
		case err != nil && ctx.Err() == nil:
			f.how.Note(err.Error())
		}
	})
}

// number is source, for several at once.
func (f *logFollower) number(pod *corev1.Pod) LogSource {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.source(pod)
}

// stream reads a pod's log to its end, through connections that break and containers that are
// started again.
func (f *logFollower) stream(ctx context.Context, pod *corev1.Pod, begun time.Time) error {
	options := f.options(pod, true)
	if pod.CreationTimestamp.After(begun) { // all of a pod that came later
		options.TailLines, options.SinceSeconds = nil, nil
	}
	source, last, pause, noted := f.number(pod), time.Time{}, logAgain, false
	for {
		stream, err := f.open(ctx, pod.Name, options)
		if err == nil {
			var until time.Time
			until, err = f.lines(stream, source, last)
			_ = stream.Close()
			if until.After(last) {
				last, pause, noted = until, logAgain, false
			}
		}
		var line lineError
		if ctx.Err() != nil || errors.As(err, &line) {
			return err
		}
		over, gone := f.over(ctx, pod)
		switch {
		case gone, over && err == nil:
			return nil
		case over && pause > logAgain: // it was tried before
			return Explain(err, "reading the log of pod "+pod.Name)
		}
		if err != nil && !noted {
			noted = true
			f.how.Note(fmt.Sprintf("%v; trying again",
				Explain(err, "reading the log of pod "+pod.Name)))
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

// over says whether a pod's log has an end, and whether it is gone with the pod.
func (f *logFollower) over(ctx context.Context, pod *corev1.Pod) (over, gone bool) {
	now, err := f.cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name,
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		return true, true
	case err != nil:
		return false, false
	}
	return now.Status.Phase == corev1.PodSucceeded || now.Status.Phase == corev1.PodFailed, false
}
