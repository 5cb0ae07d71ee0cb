package observe

import (
	"context"
	"errors"
	"fmt"
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
)

// WorkerJob is the Kubernetes Job that runs the workers; kube.WorkerJob is one.
type WorkerJob interface {
	Annotate(ctx context.Context, p kube.Progress, now time.Time) error
	Read(ctx context.Context) (kube.Wanted, error)
	Watch(ctx context.Context, changed func(kube.Wanted), reached func(error)) error
}

// Beside is where in Kubernetes the observer runs.
type Beside struct {
	Job WorkerJob
	Pod string // of this observer; while the leader is in it, it speaks for the job
}

// keep tells the Job how the job goes, and the leader how many workers the Job is to have, while
// the leader is in this pod. It ends with ctx.
func (o *observer) keep(ctx context.Context) error {
	k := &keeper{beside: o.cfg.Beside, now: time.Now, state: o.board.State,
		trouble: func(text string) { o.show.Trouble(metrics.Kubernetes, text) },
		notice:  func(text string) { o.show.Show(telemetry.Notice{Text: text}) }}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.beside.Job.Watch(ctx, k.want, k.reach) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case now := <-o.found:
				k.take(ctx, now)
			}
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
}

// request is what the leader was asked for; the same is not asked again where it was refused.
type request struct {
	run     int64
	workers int
}

func (k *keeper) want(w kube.Wanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted = w
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
	if proto.Unmarshal(now.view.Spec, spec) != nil {
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
	switch job := k.heard(); {
	case k.ours && ended && job.Run != 0 && job.Run != spec.Submitted:
		// The Job is that of the next run already, of which nothing is known here.
	case k.ours:
		k.scale(ctx, now, spec)
		k.tell(ctx)
	case ended && leader == "":
		k.end(ctx, spec)
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
func (k *keeper) end(ctx context.Context, spec *rondov1.JobSpec) {
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
		k.write(ctx, progressOf(k.state()))
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
	phase := phaseOf(now.view.Plan)
	over := phase == telemetry.PhaseStopping || phase == telemetry.PhaseEnded ||
		phase == telemetry.PhaseFailed
	ask := request{spec.Submitted, wanted.Workers}
	if limit == wanted.Workers || over {
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
func (k *keeper) tell(ctx context.Context) {
	progress := progressOf(k.state())
	if k.refusal != "" {
		progress.Reason = k.refusal
	}
	if k.now().Sub(k.toldAt) >= k.pause(progress) {
		k.write(ctx, progress)
	}
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

// progressOf is what of a state annotations say.
func progressOf(s dashboard.State) kube.Progress {
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
	return p
}
