package agree

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// Roll calls in a row after which a late rank is named, or put out of the ring.
	nameCalls  = 2
	evictCalls = 3
	// nameFactor is how many times slower than the others a rank must be to be named.
	nameFactor = 1.5
	// leastDelay is the least time that a late rank costs the others in a step. Less is noise.
	leastDelay = time.Millisecond
	// blockedFactor: the network is blamed for blocked sends only if they took this many times
	// longer than the slowest rank's extra work. A rank with a busy processor receives slowly, too.
	blockedFactor = 4
)

// Roll is a rank's memory between roll calls.
type Roll struct {
	generation int64         // of the ring
	evicted    []bool        // the ranks that a StragglerError has named in this generation
	late       []lateness    // of each rank
	steps      int64         // since the last call
	compute    time.Duration // in these steps
	sending    time.Duration // the ring's total at the last call
}

// lateness is for how many roll calls in a row a rank was late.
type lateness struct{ named, evict int }

// presence is a rank's answer to a roll call. Times are nanoseconds, the mean over the steps since
// the last call. Its size is fixed.
type presence struct {
	Digest  uint64 // of the state
	Steps   int64
	Compute int64 // reading, forward, backward, update
	Sending int64 // its sends were blocked
}

// check returns an error for an impossible answer.
func (p presence) check() error {
	if p.Steps < 0 || p.Compute < 0 || p.Sending < 0 {
		return fmt.Errorf("that %d steps took %d ns each, and sending %d", p.Steps, p.Compute,
			p.Sending)
	}
	return nil
}

// Begin starts in a new ring. sending is how long this rank's sends have been blocked in it so far.
// If the coordinator keeps the ring although a StragglerError has named a rank, the generation
// stays, and so does the list of those ranks.
func (r *Roll) Begin(ranks Ranks, sending time.Duration) {
	evicted, n := r.evicted, len(ranks.LaneEnds)
	if r.generation != ranks.Generation || len(evicted) != n {
		evicted = make([]bool, n)
	}
	*r = Roll{generation: ranks.Generation, evicted: evicted, late: make([]lateness, n),
		sending: sending}
}

// Count counts a step, and its time without the sum over the ranks.
func (r *Roll) Count(compute time.Duration) {
	r.steps++
	r.compute += compute
}

// answer returns the mean times since the last call, and starts the next means.
func (r *Roll) answer(sending time.Duration) presence {
	steps := max(1, r.steps)
	p := presence{Steps: r.steps, Compute: int64(r.compute) / steps,
		Sending: int64(sending-r.sending) / steps}
	r.steps, r.compute, r.sending = 0, 0, sending
	return p
}

// Call has the ranks compare their digests after a step, and returns how late each rank is. Sending
// is for how long this rank's sends were blocked in the ring so far. It returns nil if no step was
// done since the last call, as when a call that was broken off is done again.
func (r *Roll) Call(
	ctx context.Context, ranks Ranks, step int64, digest uint64, sending time.Duration,
) ([]Delay, error) {
	own := r.answer(sending)
	own.Digest = digest
	all, err := Gather(ctx, ranks, own)
	if err != nil {
		return nil, fmt.Errorf("roll call: %w", err)
	}
	digests := make(map[int]uint64, len(all))
	for rank, p := range all {
		digests[rank] = p.Digest
	}
	if err := ranks.compare(step, digests); err != nil || own.Steps == 0 {
		return nil, err
	}
	return delays(all), nil
}

// Delay is how many times longer a step takes the other ranks because of one rank, and why.
type Delay struct {
	factor float64 // 1: no longer
	cause  string  // compute or network
}

// delays finds how late each rank is. A rank whose own work takes longer than the others' is late
// by compute. A rank whose sends were blocked is late by the network, unless the extra work of the
// slowest rank explains that.
func delays(all []presence) []Delay {
	late := make([]Delay, len(all))
	compute := median(all, func(p presence) int64 { return p.Compute })
	excess := int64(0) // of the slowest rank's work
	for rank, p := range all {
		late[rank] = Delay{1, "compute"}
		excess = max(excess, p.Compute-compute)
		if p.Compute-compute > int64(leastDelay) {
			late[rank].factor = float64(p.Compute) / float64(max(compute, 1))
		}
	}
	sending := median(all, func(p presence) int64 { return p.Sending })
	for rank, p := range all {
		if extra := p.Sending - sending; extra > max(int64(leastDelay), blockedFactor*excess) {
			if factor := 1 + float64(extra)/float64(max(compute, 1)); factor > late[rank].factor {
				late[rank] = Delay{factor, "network"}
			}
		}
	}
	return late
}

// median is the lower of the two in the middle: of two ranks, the faster sets the measure.
func median(all []presence, of func(presence) int64) int64 {
	values := make([]int64, len(all))
	for i, p := range all {
		values[i] = of(p)
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// StragglerError ends all ranks when one rank holds up the others for evictCalls roll calls. A rank
// is named in at most one such error of a generation.
type StragglerError struct {
	Rank int
	Text string
}

func (e *StragglerError) Error() string { return e.Text }

// Judge returns notices of the ranks that are late, each once until it has caught up. It fails
// with a StragglerError that names the latest rank of those that were late by the factor limit for
// too long; 0: no rank is.
func (r *Roll) Judge(
	ranks Ranks, step int64, late []Delay, limit float64,
) (notices []string, err error) {
	worst := -1
	for rank, d := range late {
		l := &r.late[rank]
		if d.factor <= nameFactor {
			l.named = 0
		} else if l.named++; l.named == nameCalls {
			notices = append(notices, d.text(ranks, rank, step))
		}
		if limit == 0 || d.factor <= limit || r.evicted[rank] {
			l.evict = 0
		} else if l.evict++; l.evict >= evictCalls && (worst < 0 || d.factor > late[worst].factor) {
			worst = rank
		}
	}
	if worst < 0 {
		return notices, nil
	}
	r.evicted[worst] = true
	return notices, &StragglerError{Rank: worst, Text: fmt.Sprintf("%s, for %d roll calls in a "+
		"row, and --evict-stragglers is %v", late[worst].text(ranks, worst, step),
		r.late[worst].evict, limit)}
}

func (d Delay) text(ranks Ranks, rank int, step int64) string {
	who := ranks.Name(rank)
	if d.cause == "network" {
		return fmt.Sprintf("%s is late at step %d (network): its link to %s makes a step %.1f "+
			"times longer", who, step, ranks.Name((rank+1)%len(ranks.LaneEnds)), d.factor)
	}
	return fmt.Sprintf("%s is late at step %d (compute): its own work takes %.1f times as long as "+
		"the others'", who, step, d.factor)
}
