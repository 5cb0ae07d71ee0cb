package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// spendLimit bounds one call of Config.Spend or Config.Fire.
const spendLimit = 5 * time.Second

// Config is what an Actor needs from its process.
type Config struct {
	// Spend claims one of a rule's occurrences, numbered [0, Times). rule is an index in the Plan.
	// Of all calls in the job for one occurrence, in any process and at any time, exactly one
	// returns true. A worker creates a key in etcd; a test uses a map. Spend is called before the
	// fault, so that the next process with a killed process's rank does not repeat the kill. It is
	// called when the rule matches, at most Times times per rule and process. Each process starts
	// at a random occurrence, so that a new process need not try all spent ones. On an error there
	// is no fault.
	Spend func(ctx context.Context, rule, occurrence int) (bool, error)
	// Fire records that a rule has fired in the job. It returns true on its first call for the
	// rule in any process. It is called before a rule's first fault in this process, and by
	// Unfired. Nil: there is one process.
	Fire func(ctx context.Context, rule int) (bool, error)
	// Log receives one line before each fault. For a rule that fires at every match it receives
	// only the first. Nil discards the lines.
	Log func(line string)
	// Kill ends the process at once. Stop halts it for a time, or with 0 until it is continued from
	// outside. Nil means SIGKILL and SIGSTOP. A Kill that returns makes the hook return ErrKilled.
	Kill func()
	Stop func(d time.Duration) error
}

// Act is the fate of a message.
type Act int

// The fates of a message. If several rules match, the first decides.
const (
	Pass Act = iota
	Lose
	Double
	Flip // one bit
	Wait // delay by Verdict.For, then pass
)

// String names an act.
func (a Act) String() string {
	names := []string{"pass", "lose", "double", "flip", "wait"}
	if a < 0 || int(a) >= len(names) {
		return fmt.Sprintf("Act(%d)", int(a))
	}
	return names[a]
}

// Verdict is the fate of a message with its parameter.
type Verdict struct {
	Act Act
	For time.Duration // with Wait
}

// ErrKilled is returned by the hooks if Kill returns.
var ErrKilled = errors.New("killed by rehearsal")

// Actor carries out a plan in one process. Its methods may be called concurrently.
type Actor struct {
	plan Plan
	cfg  Config

	spending sync.Mutex // held during Spend, so that one occurrence is claimed at a time

	mu         sync.Mutex // guards the fields below
	generation uint64
	rank       int // -1 without a ring
	step       int64
	first      []int          // by rule: the occurrence that this process claims first
	spent      []int          // by rule: occurrences known to be spent, from first on
	logged     []bool         // by rule: whether its one-time line was logged
	fired      []bool         // by rule: in this process
	sent       map[Phase]uint // ringPhases sent in this step
}

// New makes an Actor. With an empty plan every hook returns at once.
func New(plan Plan, cfg Config) (*Actor, error) {
	limited := slices.ContainsFunc(plan, func(r Rule) bool { return r.Times > 0 })
	if limited && cfg.Spend == nil {
		return nil, errors.New("rehearsal: no Spend, which rules of limited times need")
	}
	if cfg.Log == nil {
		cfg.Log = func(string) {}
	}
	if cfg.Kill == nil {
		cfg.Kill = killSelf
	}
	if cfg.Stop == nil {
		cfg.Stop = stopSelf
	}
	a := &Actor{plan: plan, cfg: cfg, rank: -1, first: make([]int, len(plan)),
		spent: make([]int, len(plan)), logged: make([]bool, len(plan)),
		fired: make([]bool, len(plan)), sent: map[Phase]uint{}}
	for i, r := range plan {
		if r.Times > 0 {
			a.first[i] = rand.IntN(r.Times)
		}
	}
	return a, nil
}

// SetRing sets the process's rank and generation. With rank -1 it is in no ring, and no rule
// matches.
func (a *Actor) SetRing(generation uint64, rank int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.generation, a.rank, a.step = generation, rank, 0
	clear(a.sent)
}

// At is the trainer's hook before a phase of a step (from 1). The process may die, halt or be
// delayed in it. The error is ctx's, Stop's or ErrKilled.
func (a *Actor) At(ctx context.Context, phase string, step int64) error {
	if len(a.plan) == 0 {
		return nil
	}
	p := Phase(phase)
	if !slices.Contains(trainerPhases(), p) {
		panic(fmt.Sprintf("rehearsal: phase %q of the trainer; there are %v", phase,
			trainerPhases()))
	}
	if p != Load && p != Checkpoint { // these run ahead of the step or after it
		a.enter(step)
	}
	return a.selfFaults(ctx, p, step, 1)
}

// Again is At for the later passes of a step; n is the pass, from 2.
func (a *Actor) Again(ctx context.Context, phase string, step int64, n int) error {
	if len(a.plan) == 0 {
		return nil
	}
	p := Phase(phase)
	if !slices.Contains([]Phase{Load, Forward, Backward}, p) || n < 2 {
		panic(fmt.Sprintf("rehearsal: phase %q of pass %d", phase, n))
	}
	return a.selfFaults(ctx, p, step, n)
}

// selfFaults carries out kill, stop and delay in a phase of a pass (from 1).
func (a *Actor) selfFaults(ctx context.Context, p Phase, step int64, pass int) error {
	for i, r := range a.plan {
		if r.Verb != Kill && r.Verb != Stop && r.Verb != Delay || max(r.Pass, 1) != pass ||
			!a.fires(ctx, i, p, step, 0) {
			continue
		}
		if err := a.act(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// enter records the current step, for Message.
func (a *Actor) enter(step int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.step != step {
		a.step = step
		clear(a.sent)
	}
}

// act carries out a kill, stop or delay.
func (a *Actor) act(ctx context.Context, r Rule) error {
	switch r.Verb {
	case Kill:
		a.cfg.Kill()
		return ErrKilled
	case Stop:
		return a.cfg.Stop(r.For)
	}
	timer := time.NewTimer(r.For)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Message is the links' hook before a message in one of the ring's phases. Its step is that of the
// last At in a phase other than load and checkpoint. While a ring forms, before its first step, no
// rule matches. The process may die or halt in Message. The error is ErrKilled or Stop's.
func (a *Actor) Message(ctx context.Context, phase string) (Verdict, error) {
	if len(a.plan) == 0 {
		return Verdict{}, nil
	}
	p := Phase(phase)
	if !slices.Contains(ringPhases(), p) {
		panic(fmt.Sprintf("rehearsal: phase %q of the ring; there are %v", phase, ringPhases()))
	}
	step, number := a.countMessage(p)
	if step == 0 {
		return Verdict{}, nil
	}
	for i, r := range a.plan {
		act := Pass
		switch r.Verb {
		case Kill, Stop:
		case Delay:
			act = Wait
		case Drop:
			act = Lose
		case Duplicate:
			act = Double
		case Corrupt:
			if r.Phase == "" {
				continue // the parameters, not a message
			}
			act = Flip
		default:
			continue
		}
		if !a.fires(ctx, i, p, step, number) {
			continue
		}
		if act != Pass {
			return Verdict{Act: act, For: r.For}, nil
		}
		if err := a.act(ctx, r); err != nil {
			return Verdict{}, err
		}
	}
	return Verdict{}, nil
}

// countMessage counts a message of a phase. It returns the current step, or 0 before the ring's
// first step, and the number of earlier messages of the phase in this step.
func (a *Actor) countMessage(p Phase) (step int64, number uint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	step, number = a.step, a.sent[p]
	a.sent[p]++
	return step, number
}

// Spoil is the trainer's hook in a step (from 1). nan: make a value of the gradient NaN. flip: flip
// a bit of the parameters after the update.
func (a *Actor) Spoil(ctx context.Context, step int64) (nan, flip bool) {
	for i, r := range a.plan {
		switch {
		case r.Verb == NaN:
			nan = a.fires(ctx, i, Backward, step, 0) || nan
		case r.Verb == Corrupt && (r.Phase == "" || r.Phase == Update):
			flip = a.fires(ctx, i, Update, step, 0) || flip
		}
	}
	return nan, flip
}

// The storage operations that Disk knows.
const (
	OpCreate = "create"
	OpWrite  = "write"
	OpSync   = "sync"
	OpRename = "rename"
)

// Disk is the hook before an operation on the files of a step's checkpoint. disk-full fails a
// write, fsync-error a sync, io-error any operation.
func (a *Actor) Disk(ctx context.Context, step int64, op string) error {
	for i, r := range a.plan {
		var err error
		switch {
		case r.Verb == DiskFull && op == OpWrite:
			err = syscall.ENOSPC
		case r.Verb == FsyncError && op == OpSync, r.Verb == IOError:
			err = syscall.EIO
		default:
			continue
		}
		if a.fires(ctx, i, Checkpoint, step, 0) {
			return err
		}
	}
	return nil
}

// fires reports whether rule i matches here and now, and claims one of its occurrences.
func (a *Actor) fires(
	ctx context.Context, i int, phase Phase, step int64, message uint,
) bool {
	r := a.plan[i]
	a.mu.Lock()
	rank, generation, next := a.rank, a.generation, a.spent[i]
	a.mu.Unlock()
	switch {
	case rank < 0, r.Rank != AnyRank && r.Rank != rank,
		r.To > 0 && (step < r.From || step > r.To),
		!r.in(phase),
		r.Times > 0 && next >= r.Times,
		r.Chance < 1 && r.draw(generation, rank, step, phase, message) >= r.Chance:
		return false
	}
	if r.Times > 0 && !a.take(ctx, i) {
		return false
	}
	a.markFired(ctx, i)
	a.logFault(i, fmt.Sprintf("rehearsal: %s rank %d at step %d, phase %s", strings.TrimSpace(
		fmt.Sprintf("%s %s", r.Verb, r.duration())), rank, step, phase))
	return true
}

// markFired records that rule i has fired.
func (a *Actor) markFired(ctx context.Context, i int) {
	a.mu.Lock()
	before := a.fired[i]
	a.fired[i] = true
	a.mu.Unlock()
	if !before && a.cfg.Fire != nil {
		ctx, cancel := context.WithTimeout(ctx, spendLimit)
		defer cancel()
		_, _ = a.cfg.Fire(ctx, i) // on an error Unfired may name the rule
	}
}

// Unfired returns the rules that have fired in no process of the job. Call it once, at the end. It
// leaves out a rule if Fire fails.
func (a *Actor) Unfired(ctx context.Context) (rules Plan) {
	ctx, cancel := context.WithTimeout(ctx, spendLimit)
	defer cancel()
	for i, r := range a.plan {
		a.mu.Lock()
		fired := a.fired[i]
		a.mu.Unlock()
		if fired {
			continue
		}
		if a.cfg.Fire != nil {
			first, err := a.cfg.Fire(ctx, i)
			fired = err != nil || !first
		}
		if !fired {
			rules = append(rules, r)
		}
	}
	return rules
}

// logFault logs a fault. For a rule that fires at every match it logs only the first: the user
// knows of the others, and there may be one per message. Faults drawn by chance= cannot be known,
// so all are logged.
func (a *Actor) logFault(i int, line string) {
	if r := a.plan[i]; r.Times > 0 || r.Chance < 1 {
		a.cfg.Log(line)
	} else if a.firstTime(i) {
		a.cfg.Log(line + ", and at every match: logged once")
	}
}

func (r Rule) duration() string {
	if r.For == 0 {
		return ""
	}
	return "for " + r.For.String() + ":"
}

// take claims an unspent occurrence of rule i.
func (a *Actor) take(ctx context.Context, i int) bool {
	a.spending.Lock()
	defer a.spending.Unlock()
	ctx, cancel := context.WithTimeout(ctx, spendLimit)
	defer cancel()
	times := a.plan[i].Times
	for n := a.spentCount(i); n < times; n++ {
		mine, err := a.cfg.Spend(ctx, i, (a.first[i]+n)%times)
		if err != nil {
			a.logSpendError(i, err)
			return false
		}
		a.mu.Lock()
		a.spent[i]++
		a.mu.Unlock()
		if mine {
			return true
		}
	}
	return false
}

// spentCount returns the number of occurrences of rule i that are known to be spent.
func (a *Actor) spentCount(i int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spent[i]
}

// firstTime returns true on its first call for rule i.
func (a *Actor) firstTime(i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	logged := a.logged[i]
	a.logged[i] = true
	return !logged
}

// logSpendError logs the first error of Spend for a rule.
func (a *Actor) logSpendError(i int, err error) {
	if a.firstTime(i) {
		a.cfg.Log(fmt.Sprintf("rehearsal: %q does nothing, because its use cannot be recorded: %v",
			a.plan[i], err))
	}
}

// draw returns a number in [0, 1) that depends only on its arguments and the rule's seed.
func (r Rule) draw(generation uint64, rank int, step int64, phase Phase, message uint) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %s %d", generation, rank, step, phase, message)
	return rand.New(rand.NewPCG(r.Seed, h.Sum64())).Float64()
}
