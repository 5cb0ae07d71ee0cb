package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/internal/app"
)

// stopped stops a job while an observer writes its progress, one after the other. It returns what
// the command has said.
func stopped(t *testing.T, job *batchv1.Job, how Stop, writes ...Progress) (
	heard *told, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := clusterOf(append(someSpec(), job)...)
	jobs := c.Client.BatchV1().Jobs("here")
	heard = &told{}
	how.Say = heard.say
	ended := make(chan error, 1)
	go func() { ended <- c.Stop(ctx, "book", how) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for asked := false; ; {
		select {
		case err := <-ended:
			return heard, err
		case <-tick.C:
		}
		now, err := jobs.Get(ctx, "book-worker", metav1.GetOptions{})
		check(t, err)
		asked = asked || now.Annotations[annotations+"stop"] == "rondo stop"
		if !asked || len(writes) == 0 {
			continue
		}
		check(t, c.WorkerJob("book-worker").Annotate(ctx, writes[0], time.Now()))
		if len(writes) > 1 { // the last one again and again: a watch of this client may miss one
			writes = writes[1:]
		}
	}
}

func TestStop(t *testing.T) {
	running := map[string]string{"phase": "running", "world-size": "2",
		"updated": time.Now().Format(time.RFC3339)}
	how := Stop{Timeout: time.Minute, Force: true}
	const asked = "job book is running, with 2 in the ring: stopping it\n"
	end := Progress{Phase: "ended", Reason: "stopped: rondo stop"}
	saved := end
	saved.Checkpoint, saved.CheckpointStep = "s3://books/step-12", 12
	suspended := someJob(2, map[string]string{"phase": "paused"})
	suspended.Spec.Suspend = pointer(true)
	for name, c := range map[string]struct {
		job    *batchv1.Job
		writes []Progress
		want   string
	}{
		"saved": {someJob(2, running), []Progress{{Phase: "running"}, {Phase: "stopping"}, saved},
			asked + "job book has ended (stopped: rondo stop); checkpoint of step 12: " +
				"s3://books/step-12"},
		"not saved": {someJob(2, running), []Progress{{Phase: "stopping"}, end}, asked +
			"job book has ended (stopped: rondo stop) without a checkpoint: it was submitted " +
			"without --checkpoint-dir"},
		"suspended": {suspended, []Progress{saved}, "job book is paused, with 0 in the ring: " +
			"stopping it\njob book has ended (stopped: rondo stop); checkpoint of step 12: " +
			"s3://books/step-12"},
	} {
		heard, err := stopped(t, c.job, how, c.writes...)
		if err != nil || heard.String() != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, heard, c.want)
		}
	}
}

func TestStopSaysWhatCannotBe(t *testing.T) {
	at := func(phase string, ago time.Duration) *batchv1.Job {
		return someJob(2, map[string]string{"phase": phase, "reason": "why",
			"updated": time.Now().Add(-ago).Format(time.RFC3339)})
	}
	how := Stop{Timeout: time.Second, Force: true}
	careful := how
	careful.Force = false
	for name, c := range map[string]struct {
		job    *batchv1.Job
		how    Stop
		writes []Progress
		want   string
		usage  bool
	}{
		"over":       {at("ended", 0), how, nil, "job book has ended: why", false},
		"not begun":  {someJob(2, nil), how, nil, "job book has not begun", false},
		"silent":     {at("running", time.Minute), how, nil, "was heard of it for 1m", false},
		"model lost": {at("running", 0), careful, nil, "its model would be lost", true},
		"slow":       {at("running", 0), how, nil, "has not ended within 1s", false},
		"fails": {at("running", 0), how, []Progress{{Phase: "failed",
			Reason: "oh"}}, "failed: oh", false},
		"an older run": {at("running", 0), how, []Progress{{Phase: "stopping"},
			{Phase: "forming"}}, "the newer one goes on", false},
	} {
		_, err := stopped(t, c.job, c.how, c.writes...)
		wants(t, err, c.want)
		var wrong *app.UsageError
		if errors.As(err, &wrong) != c.usage {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForget: an observer is asked, and waited for, if there may be something to forget.
func TestForget(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	forget := func(c *Cluster, led bool) error {
		job, err := c.Job(ctx, "book")
		check(t, err)
		return (&deletion{objects: &objects{Cluster: c}, job: "book"}).forget(ctx, job, led)
	}
	check(t, forget(clusterOf(someJob(1, nil)), false))
	c := clusterOf(someJob(1, map[string]string{"phase": "ended"}),
		somePod("book-coordinator-a", "", corev1.PodRunning, nil))
	wants(t, forget(c, false), "no coordinator of it is ready")
	done := make(chan error, 1)
	go func() { done <- forget(c, true) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for observer := c.WorkerJob("book-worker"); ; {
		select {
		case err := <-done:
			check(t, err)
			return
		case <-tick.C:
		}
		if now, err := observer.Read(ctx); err != nil || now.Forget {
			check(t, errors.Join(err, observer.Forgotten(ctx)))
		}
	}
}
