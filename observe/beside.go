package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/flowcontrol"

	"rondo/cluster"
	"rondo/cluster/rpc"
	"rondo/dashboard"
	"rondo/k8s/kube"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/telemetry/metrics"
)

// Intervals of writes to the Job. Each write wakes the controllers that watch Jobs. A new phase is
// written at once.
const (
	writeEvery = 5 * time.Second // for rare changes, and after a failure
	// writeSteps is for steps, and for a write without a change. A Job without a write for
	// kube.SilenceLimit counts as unknown; the rest of that time is for the election of another
	// leader.
	writeSteps  = kube.SilenceLimit / 3
	writeEnded  = time.Minute // for a job that has ended
	askAgain    = 15 * time.Second
	endPause    = 15 * time.Second // for the last leader's observer to write the end
	doneTimeout = 10 * time.Second // for the leader's last event
	// The Job's annotations are limited to 256 KiB in all.
	maxRing    = 64 << 10 // bytes; a larger ring is left out
	maxEvicted = 1 << 10
)

// forgetReason is the stop reason of a job that is deleted.
const forgetReason = "rondo delete"

// WorkerJob is the Kubernetes Job of the workers; kube.WorkerJob implements it.
type WorkerJob interface {
	Annotate(ctx context.Context, p kube.Progress, now time.Time) error
	Forgotten(ctx context.Context) error
	Read(ctx context.Context) (kube.Wanted, error)
	Tell(ctx context.Context, e kube.Event, now time.Time) error
	Leave(ctx context.Context) error
	Watch(ctx context.Context, changed func(kube.Wanted), reached func(error)) error
}

// Beside is the observer's place in Kubernetes.
type Beside struct {
	Job WorkerJob
	Pod string // of this observer, which writes while the leader is in the same pod
}

// keep writes the job's progress into the Job, and passes the Job's wishes to the leader, while the
// leader is in this pod. It ends with ctx.
func (o *observer) keep(ctx context.Context) error {
	k := &keeper{beside: o.cfg.Beside, now: time.Now, state: o.board.State,
		changed: make(chan struct{}, 1),
		events:  flowcontrol.NewTokenBucketRateLimiter(eventPerSecond, eventBurst),
		trouble: func(text string) { o.show.Trouble(metrics.Kubernetes, text) },
		notice:  func(text string) { o.show.Show(telemetry.Notice{Text: text}) }}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.beside.Job.Watch(ctx, k.want, k.reach) })
	group.Go(func() error {
		var last found
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case last = <-o.found:
			case <-k.changed:
			}
			k.take(ctx, last)
		}
	})
	err := group.Wait()
	leaveErr := k.beside.Job.Leave(context.WithoutCancel(ctx)) // the pod is leaving, too
	if leaveErr != nil {
		k.notice(leaveErr.Error())
	}
	return err
}

// keeper is the state of keep.
type keeper struct {
	beside  *Beside
	now     func() time.Time
	state   func() dashboard.State
	trouble func(text string)
	notice  func(text string)
	changed chan struct{} // has a token after wanted has changed
	events  flowcontrol.PassiveRateLimiter

	mu     sync.Mutex
	wanted kube.Wanted

	// Used only by the goroutine that calls take.
	ours      bool          // the leader is in this pod, or was the last one
	written   kube.Progress // last
	writtenAt time.Time
	failed    bool      // the last attempt has failed
	overAt    time.Time // when this observer writes the end unless another has
	asked     request   // the last one
	askedAt   time.Time
	refusal   string
	stopAt    time.Time // when the leader was asked to stop
	endedAt   time.Time // when the end was first seen
	known     known
}

// request is a request to the leader. A refused one is not repeated.
type request struct {
	run     int64
	workers int
}

func (k *keeper) want(w kube.Wanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wanted != w {
		k.wanted = w
		select {
		case k.changed <- struct{}{}:
		default: // the token is there already
		}
	}
}

func (k *keeper) reach(err error) {
	if err != nil {
		k.trouble(err.Error())
		return
	}
	k.trouble("")
}

// take handles one look at the job.
func (k *keeper) take(ctx context.Context, now found) {
	spec := &rondov1.JobSpec{}
	if len(now.view.Spec) == 0 || proto.Unmarshal(now.view.Spec, spec) != nil {
		return
	}
	leader := now.view.Leader.ID
	if leader != "" { // the last leader's observer writes the end
		k.ours = within(leader, k.beside.Pod)
	}
	ended := now.view.Plan.Phase == cluster.Ended
	if k.ours || !ended || leader != "" {
		k.overAt = time.Time{}
	}
	job := k.job()
	if ended && job.Forget && spec.Submitted <= job.Run {
		k.forget(ctx, now)
		return
	}
	switch {
	case k.ours && ended && job.Run != 0 && job.Run != spec.Submitted:
		// The Job already belongs to the next run, about which this observer knows nothing.
	case k.ours:
		k.stop(ctx, now)
		k.scale(ctx, now, spec)
		if !k.awaitsDone(now.view) {
			k.annotate(ctx, now.view)
			k.tell(ctx, spec.Submitted, now.view, true)
		}
		return
	case ended && leader == "":
		if k.end(ctx, now.view, spec) { // nobody has told the event
			k.known.over = false
			k.tell(ctx, spec.Submitted, now.view, true)
			return
		}
	default:
		k.refusal = ""
	}
	k.tell(ctx, spec.Submitted, now.view, false)
}

// job returns the Job's last known wishes.
func (k *keeper) job() kube.Wanted {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wanted
}

// end writes the job's end if the last leader's pod may be gone, and reports whether it did. It
// reads the Job first, which may belong to another run by now, or already have the end.
func (k *keeper) end(ctx context.Context, view cluster.View, spec *rondov1.JobSpec) bool {
	at := k.now()
	if k.overAt.IsZero() {
		k.overAt = at.Add(endPause)
	}
	if at.Before(k.overAt) {
		return false
	}
	k.overAt = at.Add(writeEnded)
	job, err := k.read(ctx)
	if err != nil || job.Over || job.Run != spec.Submitted {
		return false
	}
	k.write(ctx, k.progress(view))
	return !k.failed
}

// read reads the Job's wishes, because the last known ones may be old.
func (k *keeper) read(ctx context.Context) (kube.Wanted, error) {
	job, err := k.beside.Job.Read(ctx)
	if ctx.Err() != nil {
		return job, ctx.Err()
	}
	k.reach(err)
	if err == nil {
		k.want(job)
	}
	return job, err
}

// within reports whether a coordinator's id contains a pod's name.
func within(leader, pod string) bool {
	return pod != "" && strings.Contains("-"+leader+"-", "-"+pod+"-")
}

// forget removes an ended job's keys from etcd, and confirms it in the Job.
func (k *keeper) forget(ctx context.Context, now found) {
	if err := now.forget(ctx); err != nil {
		k.trouble(err.Error())
		return
	}
	k.reach(k.beside.Job.Forgotten(ctx))
}

// closing reports whether a job stops or has ended, so that it takes no requests.
func closing(view cluster.View) bool {
	return view.Plan.Phase == cluster.Stopping || view.Plan.Phase == cluster.Ended
}

// stop asks the leader to stop the job if the Job's annotations ask for it.
func (k *keeper) stop(ctx context.Context, now found) {
	job := k.job()
	if job.Stop == "" && !job.Forget || closing(now.view) ||
		k.now().Sub(k.stopAt) < askAgain {
		return
	}
	if job, err := k.read(ctx); err != nil || job.Stop == "" && !job.Forget {
		return
	}
	k.stopAt = k.now()
	if err := now.stop(ctx, cmp.Or(job.Stop, forgetReason)); err != nil && ctx.Err() == nil {
		k.notice(fmt.Sprintf("the leader was asked to stop the job and did not: %v", err))
	}
}

// scale asks the leader for the Job's number of workers.
func (k *keeper) scale(ctx context.Context, now found, spec *rondov1.JobSpec) {
	wanted := k.job()
	if wanted.Suspended || wanted.Workers == 0 {
		return
	}
	limit := now.view.Plan.Limit
	if limit == 0 {
		limit = int(spec.Workers)
	}
	ask := request{spec.Submitted, wanted.Workers}
	if limit == wanted.Workers || closing(now.view) {
		k.refusal = ""
		return
	}
	if k.asked == ask && (k.refusal != "" || k.now().Sub(k.askedAt) < askAgain) {
		return
	}
	k.asked, k.askedAt, k.refusal = ask, k.now(), ""
	if job, err := k.read(ctx); err != nil || job.Workers != wanted.Workers || job.Suspended {
		return
	}
	err := now.scale(ctx, wanted.Workers)
	var refused *rpc.RefusedError
	if errors.As(err, &refused) {
		k.refusal = fmt.Sprintf("the Job asks for %d workers, which the leader refuses: %v",
			wanted.Workers, err)
		k.notice(k.refusal)
	}
}

// annotate writes the job's progress into the Job's annotations when that is due.
func (k *keeper) annotate(ctx context.Context, view cluster.View) {
	progress := k.progress(view)
	if k.refusal != "" {
		progress.Reason = k.refusal
	}
	if k.now().Sub(k.writtenAt) >= k.pause(progress) {
		k.write(ctx, progress)
	}
}

// awaitsDone reports whether a job has ended and its leader's last event, which names the last
// checkpoint, has not come yet.
func (k *keeper) awaitsDone(view cluster.View) bool {
	if view.Plan.Phase != cluster.Ended || view.Plan.Failed || len(view.Plan.Members) == 0 {
		k.endedAt = time.Time{}
		return false
	}
	if k.endedAt.IsZero() {
		k.endedAt = k.now()
	}
	return k.now().Sub(k.endedAt) < doneTimeout &&
		!slices.ContainsFunc(k.state().Notices, func(n dashboard.Notice) bool {
			return n.Kind == telemetry.KindDone
		})
}

// pause returns the time between the last write and the next.
func (k *keeper) pause(p kube.Progress) time.Duration {
	same := p
	same.Step, same.Epoch = k.written.Step, k.written.Epoch
	same.Loss, same.Perplexity = k.written.Loss, k.written.Perplexity
	same.TokensPerSecond = k.written.TokensPerSecond
	switch {
	case k.failed:
		return writeEvery
	case p == k.written && p.Over():
		return writeEnded
	case p.Phase != k.written.Phase:
		return 0
	case same == k.written:
		return writeSteps
	}
	return writeEvery
}

func (k *keeper) write(ctx context.Context, p kube.Progress) {
	now := k.now()
	k.writtenAt = now
	err := k.beside.Job.Annotate(ctx, p, now)
	if ctx.Err() != nil {
		return
	}
	k.reach(err)
	if k.failed = err != nil; !k.failed {
		k.written = p
	}
}

// progress returns the annotations for a look at the job and for the events so far.
func (k *keeper) progress(view cluster.View) kube.Progress {
	s := k.state()
	p := kube.Progress{Phase: s.Phase, Reason: kube.Outside(s.Reason), Step: s.Progress.Step,
		TotalSteps: s.Progress.TotalSteps, Epoch: s.Progress.Epoch, WorldSize: s.WorldSize,
		Generation: s.Generation}
	if p.Step > 0 {
		p.Loss, p.Perplexity = float64(s.Progress.Loss), float64(s.Progress.Perplexity)
		p.TokensPerSecond = float64(s.Progress.TokensPerSecond)
	}
	if n := len(s.Checkpoints); n > 0 {
		last := s.Checkpoints[n-1]
		p.Checkpoint, p.CheckpointStep = kube.Outside(last.Path), last.Step
	}
	if view.Plan.Phase == cluster.Ended {
		return p
	}
	if k.ours && view.Leader.ID != "" {
		p.Leader = k.beside.Pod
	}
	p.Ring = ringOf(view.Plan)
	for _, e := range view.Plan.Evicted {
		if slices.ContainsFunc(view.Members, func(m cluster.Member) bool { return m.ID == e.ID }) &&
			len(p.Evicted) < maxEvicted {
			p.Evicted = strings.TrimPrefix(p.Evicted+"; "+e.ID+" ("+e.Reason+")", "; ")
		}
	}
	return p
}

// ringOf returns the ring's workers by rank, each with its address and lanes: IP=FROM-TO,...
func ringOf(plan cluster.Plan) string {
	var ring strings.Builder
	for rank, m := range plan.Members {
		host, _, err := net.SplitHostPort(m.Address)
		if err != nil {
			host = m.Address
		}
		from, to := plan.Lanes(cluster.Rank(rank))
		fmt.Fprintf(&ring, ",%s=%d-%d", host, from, to)
		if ring.Len() > maxRing {
			return ""
		}
	}
	return strings.TrimPrefix(ring.String(), ",")
}
