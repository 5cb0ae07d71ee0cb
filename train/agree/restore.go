package agree

import (
	"context"
	"sync"
	"time"
)

// Reason is why a ring asks for a snapshot.
type Reason int

// The reasons.
const (
	NoState   Reason = iota // no rank has a state
	LostLanes               // no rank knows the state of some lanes, or of some shards
	Behind                  // others have gone further, or may have
	Untrusted               // the ranks' states differed, and none can be trusted
)

// lookSigns is after how long the ranks meet again while rank 0 looks for a snapshot.
const lookSigns = time.Second

// found is the result of Join.Look.
type found struct {
	load func() error
	err  error
}

// restore lets rank 0 look for a snapshot, and tells all ranks whether it has loaded one. Finding,
// reading and verifying a snapshot may take much longer than the ranks wait for each other in the
// ring, so they meet every lookSigns.
func (j *Join[P]) restore(
	ctx context.Context, reason Reason, after int64,
) ([]Standing[P], error) {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	defer looking.Wait() // after cancel
	defer cancel()
	var finding chan found // nil: this rank does not look
	if j.Ranks.Rank == 0 && j.Look != nil {
		finding = make(chan found, 1)
		looking.Go(func() {
			load, err := j.Look(ctx, reason, after)
			finding <- found{load, err}
		})
	}
	for {
		var own Standing[P]
		if finding != nil {
			var err error
			if own, err = j.load(ctx, finding); err != nil {
				return nil, err
			}
		}
		all, err := j.gather(ctx, own)
		if err != nil || !all[0].Looking {
			return all, err
		}
	}
}

// load makes the snapshot that was found this rank's state. After lookSigns it returns that this
// rank still looks.
func (j *Join[P]) load(ctx context.Context, finding <-chan found) (Standing[P], error) {
	sign := time.NewTimer(lookSigns)
	defer sign.Stop()
	var f found
	select {
	case f = <-finding:
	case <-sign.C:
		return Standing[P]{Looking: true}, nil
	case <-ctx.Done():
	}
	switch {
	case ctx.Err() != nil: // f.err may only say so, too
		return Standing[P]{}, context.Cause(ctx)
	case f.err != nil:
		return Standing[P]{}, f.err
	case f.load == nil:
		return Standing[P]{}, nil
	}
	if err := f.load(); err != nil {
		return Standing[P]{}, err
	}
	own := j.State.Standing()
	own.Found = true
	return own, nil
}
