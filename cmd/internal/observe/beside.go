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

	"rondo/cluster/rpc"
	"rondo/cmd/internal/kube"
	"rondo/dashboard"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/telemetry/metrics"
)

// How often the Job is told of progress.
const (
	tellEvery = 5 * time.Second // at most, but for the job's end
	tellAgain = time.Minute     // of what has not changed, so that it is seen to be watched
	askAgain  = 15 * time.Second
)

// WorkerJob is the Kubernetes Job that runs the workers; kube.WorkerJob is one.
type WorkerJob interface {
	Annotate(ctx context.Context, p kube.Progress, now time.Time) error
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
	asked   request // the last one that was refused, or not answered
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
	if leader := now.view.Leader.ID; leader != "" { // who led last tells of the end
		k.ours = within(leader, k.beside.Pod)
	}
	if !k.ours {
		k.refusal = ""
		return
	}
	k.scale(ctx, now)
	k.tell(ctx)
}

// within says whether a coordinator's id has a pod's name among its parts.
func within(leader, pod string) bool {
	return pod != "" && strings.Contains("-"+leader+"-", "-"+pod+"-")
}

// scale asks the leader for as many workers as the Job is to have.
func (k *keeper) scale(ctx context.Context, now found) {
	k.mu.Lock()
	wanted := k.wanted
	k.mu.Unlock()
	spec := &rondov1.JobSpec{}
	if wanted.Suspended || wanted.Workers == 0 || proto.Unmarshal(now.view.Spec, spec) != nil {
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
	now := k.now()
	since := now.Sub(k.toldAt)
	ended := progress.Phase == telemetry.PhaseEnded || progress.Phase == telemetry.PhaseFailed
	news := progress != k.told
	switch {
	case !news && since < tellAgain:
		return
	case since < tellEvery && !(ended && k.told.Phase != progress.Phase):
		return
	}
	k.toldAt = now // also of an attempt: it is made again as late as that
	err := k.beside.Job.Annotate(ctx, progress, now)
	if ctx.Err() != nil {
		return
	}
	k.reach(err)
	if err == nil {
		k.told = progress
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
