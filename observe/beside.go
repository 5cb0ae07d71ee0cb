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

	"rondo/cluster"
	"rondo/cluster/rpc"
	"rondo/dashboard"
	"rondo/k8s/kube"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/telemetry/metrics"
)

// How often the Job is told of progress: each time wakes the controllers that watch Jobs. Of
// another phase it is told at once.
const (
	tellEvery = 5 * time.Second // of what changes seldom, and after a failure
	// tellAgain is for steps, and where nothing has changed. A job of which nothing is heard for
	// kube.SilenceLimit counts as unknown; the rest of it is for the election of another leader.
	tellAgain = kube.SilenceLimit / 3
	tellEnded = time.Minute // of a job that has ended
	askAgain  = 15 * time.Second
	endAfter  = 15 * time.Second // for the observer of the last leader to tell of the end
	endHeard  = 10 * time.Second // for the leader to tell of the last checkpoint
	// The Job's annotations may have 256 KiB in all.
	maxRing    = 64 << 10 // bytes; a larger ring is left out
	maxEvicted = 1 << 10
)

// forgetReason is why a job stops that etcd is to forget.
const forgetReason = "rondo delete"

// WorkerJob is the Kubernetes Job that runs the workers; kube.WorkerJob is one.
type WorkerJob interface {
	Annotate(ctx context.Context, p kube.Progress, now time.Time) error
	Forgotten(ctx context.Context) error
	Read(ctx context.Context) (kube.Wanted, error)
	Watch(ctx context.Context, changed func(kube.Wanted), reached func(error)) error
}

// Beside is where in Kubernetes the observer runs.
type Beside struct {
	Job WorkerJob
	Pod string // of this observer; while the leader is in it, it speaks for the job
}

// keep tells the Job how the job goes, and the leader how many workers the Job is to have and
// whether it is to stop, while the leader is in this pod. It ends with ctx.
func (o *observer) keep(ctx context.Context) error {
	k := &keeper{beside: o.cfg.Beside, now: time.Now, state: o.board.State,
		changed: make(chan struct{}, 1),
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
	return group.Wait()
}

// keeper does the work of keep.
type keeper struct {
	beside  *Beside
	now     func() time.Time
	state   func() dashboard.State
	trouble func(text string)
	notice  func(text string)
	changed chan struct{} // something else is wanted

	mu     sync.Mutex
	wanted kube.Wanted

	// Of the goroutine that calls take.
	ours    bool // the leader is in this pod, or was the last one
	told    kube.Progress
	toldAt  time.Time
	untold  bool      // the last attempt has failed
	overAt  time.Time // since when the end has been ours to tell, if nobody else does
	asked   request   // the last one that was refused, or not answered
	askedAt time.Time
	refusal string
	stopAt  time.Time // when the leader was asked to stop
	endedAt time.Time // when the end was seen first
}

// request is what the leader was asked for; the same is not asked again where it was refused.
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
		default: // it is known already
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

// take looks at the job as it was found now.
func (k *keeper) take(ctx context.Context, now found) {
	spec := &rondov1.JobSpec{}
	if len(now.view.Spec) == 0 || proto.Unmarshal(now.view.Spec, spec) != nil {
		return
	}
	leader := now.view.Leader.ID
	if leader != "" { // who led last tells of the end
		k.ours = within(leader, k.beside.Pod)
	}
	ended := now.view.Plan.Phase == cluster.Ended
	if k.ours || !ended || leader != "" {
		k.overAt = time.Time{}
	}
	job := k.heard()
	if ended && job.Forget && spec.Submitted <= job.Run {
		k.forget(ctx, now)
		return
	}
	switch {
	case k.ours && ended && job.Run != 0 && job.Run != spec.Submitted:
		// The Job is that of the next run already, of which nothing is known here.
	case k.ours:
		k.stop(ctx, now)
		k.scale(ctx, now, spec)
		k.tell(ctx, now.view)
	case ended && leader == "":
		k.end(ctx, now.view, spec)
	default:
		k.refusal = ""
	}
}

// heard is what was heard of the Job last.
func (k *keeper) heard() kube.Wanted {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wanted
}

// end tells of the end where the pod of who led last may be gone: the Job is read first, which may
// be that of another run by now, or have been told.
func (k *keeper) end(ctx context.Context, view cluster.View, spec *rondov1.JobSpec) {
	at := k.now()
	if k.overAt.IsZero() {
		k.overAt = at.Add(endAfter)
	}
	if at.Before(k.overAt) {
		return
	}
	k.overAt = at.Add(tellEnded)
	job, err := k.read(ctx)
	if err == nil && !job.Over && job.Run == spec.Submitted {
		k.write(ctx, k.progress(view))
	}
}

// read asks what the Job says at this moment, because what was heard of it may be old.
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

// within says whether a coordinator's id has a pod's name among its parts.
func within(leader, pod string) bool {
	return pod != "" && strings.Contains("-"+leader+"-", "-"+pod+"-")
}

// forget has etcd keep nothing of a job that has ended, and says so to who asked for it.
func (k *keeper) forget(ctx context.Context, now found) {
	if err := now.forget(ctx); err != nil {
		k.trouble(err.Error())
		return
	}
	k.reach(k.beside.Job.Forgotten(ctx))
}

// closing says whether a job stops, or has ended: nothing more is asked of it.
func closing(view cluster.View) bool {
	return view.Plan.Phase == cluster.Stopping || view.Plan.Phase == cluster.Ended
}

// stop asks the leader to stop the job, where the Job's annotations say so.
func (k *keeper) stop(ctx context.Context, now found) {
	job := k.heard()
	if job.Stop == "" && !job.Forget || closing(now.view) ||
		k.now().Sub(k.stopAt) < askAgain {
		return
	}
	if job, err := k.read(ctx); err != nil || job.Stop == "" && !job.Forget {
		return
	}
	k.stopAt = k.now()
	if err := now.stop(ctx, cmp.Or(job.Stop, forgetReason)); err != nil && ctx.Err() == nil {
		k.notice(fmt.Sprintf("the leader was asked to stop the job, and has not: %v", err))
	}
}

// scale asks the leader for as many workers as the Job is to have.
func (k *keeper) scale(ctx context.Context, now found, spec *rondov1.JobSpec) {
	wanted := k.heard()
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

// tell writes how the job goes into the Job's annotations, if that is due.
func (k *keeper) tell(ctx context.Context, view cluster.View) {
	if k.unheard(view) {
		return
	}
	progress := k.progress(view)
	if k.refusal != "" {
		progress.Reason = k.refusal
	}
	if k.now().Sub(k.toldAt) >= k.pause(progress) {
		k.write(ctx, progress)
	}
}

// unheard says whether a job has ended whose leader has not told of it yet: it tells of the last
// checkpoint first.
func (k *keeper) unheard(view cluster.View) bool {
	if view.Plan.Phase != cluster.Ended || view.Plan.Failed || len(view.Plan.Members) == 0 {
		k.endedAt = time.Time{}
		return false
	}
	if k.endedAt.IsZero() {
		k.endedAt = k.now()
	}
	return k.now().Sub(k.endedAt) < endHeard &&
		!slices.ContainsFunc(k.state().Notices, func(n dashboard.Notice) bool {
			return n.Kind == telemetry.KindDone
		})
}

// pause is how long after the last time the Job is told.
func (k *keeper) pause(p kube.Progress) time.Duration {
	same := p
	same.Step, same.Epoch = k.told.Step, k.told.Epoch
	same.Loss, same.Perplexity = k.told.Loss, k.told.Perplexity
	same.TokensPerSecond = k.told.TokensPerSecond
	switch {
	case k.untold:
		return tellEvery
	case p == k.told && p.Over():
		return tellEnded
	case p.Phase != k.told.Phase:
		return 0
	case same == k.told:
		return tellAgain
	}
	return tellEvery
}

func (k *keeper) write(ctx context.Context, p kube.Progress) {
	now := k.now()
	k.toldAt = now
	err := k.beside.Job.Annotate(ctx, p, now)
	if ctx.Err() != nil {
		return
	}
	k.reach(err)
	if k.untold = err != nil; !k.untold {
		k.told = p
	}
}

// progress is what annotations say of the job as it was found, and of what was shown of it.
func (k *keeper) progress(view cluster.View) kube.Progress {
	s := k.state()
	p := kube.Progress{Phase: s.Phase, Reason: s.Reason, Step: s.Progress.Step,
		TotalSteps: s.Progress.TotalSteps, Epoch: s.Progress.Epoch, WorldSize: s.WorldSize,
		Generation: s.Generation}
	if p.Step > 0 {
		p.Loss, p.Perplexity = float64(s.Progress.Loss), float64(s.Progress.Perplexity)
		p.TokensPerSecond = float64(s.Progress.TokensPerSecond)
	}
	if n := len(s.Checkpoints); n > 0 {
		p.Checkpoint, p.CheckpointStep = s.Checkpoints[n-1].Path, s.Checkpoints[n-1].Step
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

// ringOf lists the ring's workers by rank, each with its address and lanes: IP=FROM-TO,...
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
