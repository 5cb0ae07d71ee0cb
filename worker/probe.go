package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"rondo/cluster"
)

const (
	// probeTime is how long a worker that was put out probes at most. Then it registers again.
	probeTime = 10 * time.Minute
	// probedMembers is how many members of a ring it tries to reach at most.
	probedMembers = 32
	// neighbours is how many members a worker must reach to have a place in a ring.
	neighbours = 2
)

// errFit says that a worker may register again.
var errFit = errors.New("this worker may register again")

// probe waits until this worker, which was put out, reaches two members of the ring that trains
// now. With fewer neighbours it would break the next ring, too. If no ring trains, probe does not
// wait: the job may need this worker.
func (w *worker) probe(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	for pause := firstReturn; limited.Err() == nil; pause = min(2*pause, lastReturn) {
		watching, stop := context.WithTimeout(limited, pause)
		err := w.registry.WatchPlan(watching, func(p cluster.Plan) error {
			return w.probeRing(limited, p)
		})
		waited := watching.Err() != nil
		stop()
		if errors.Is(err, errFit) || !waited {
			return
		}
	}
}

// probeRing returns errFit unless a ring trains and this worker reaches too few of its members.
func (w *worker) probeRing(ctx context.Context, plan cluster.Plan) error {
	if plan.Phase != cluster.Running {
		return errFit
	}
	ctx, cancel := context.WithTimeout(ctx, w.spec.ChunkTimeout.AsDuration())
	defer cancel()
	var probing sync.WaitGroup
	var reached atomic.Int64
	tried := min(len(plan.Members), probedMembers)
	for i := range tried {
		address := plan.Members[i*len(plan.Members)/tried].Address
		probing.Go(func() {
			if w.reach(ctx, address) == nil {
				reached.Add(1)
			}
		})
	}
	probing.Wait()
	if n := int(reached.Load()); n < min(neighbours, tried) {
		w.log.Warn("this worker stays out: it reaches too few of the ring's workers",
			"generation", plan.Generation, "reached", n, "tried", tried)
		return nil
	}
	return errFit
}
