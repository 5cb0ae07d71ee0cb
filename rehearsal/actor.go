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

// spendLimit bounds one question to Config.Spend.
const spendLimit = 5 * time.Second

// Config is what an Actor needs of its process.
type Config struct {
	// Spend takes one of the occurrences [0, Times) of a rule (its index in the Plan) for the job:
	// it returns true for exactly one of all that ask, in whichever process, at whatever time. A
	// worker asks etcd to create a key if there is none; a test asks a map. Asked before the fault,
	// so that one that kills is not repeated by the process that has the rank next. It is asked
	// when the rule matches, at most Times times a rule and process, from some occurrence on and
	// around: so a process that is new need not ask for all that are spent. When it fails there is
	// no fault.
	Spend func(ctx context.Context, rule, occurrence int) (bool, error)
	// Log hears one line of every fault, before it happens, but of a rule that fires whenever it
	// matches only of the first; nil: nobody does.
	Log func(line string)
	// Kill ends the process at once, and Stop halts it: for a time, or with 0 until somebody
	// continues it. Nil: SIGKILL and SIGSTOP. If they return, so does the hook, with an error
	// after Kill.
	Kill func()
	Stop func(d time.Duration) error
}

// Act is what is to be done with a message.
type Act int

// What can be done with a message. Of several rules the first that matches decides.
const (
	Pass Act = iota
	Lose
	Double
	Flip // one bit
	Wait // for Verdict.For, and then pass
)

// String names an act.
func (a Act) String() string {
	names := []string{"pass", "lose", "double", "flip", "wait"}
	if a < 0 || int(a) >= len(names) {
		return fmt.Sprintf("Act(%d)", int(a))
	}
	return names[a]
}

// Verdict is what is to be done with a message.
type Verdict struct {
	Act Act
	For time.Duration // with Wait
}

// ErrKilled is what the hooks return after a Kill that returned.
var ErrKilled = errors.New("killed by rehearsal")

// Actor carries out a plan in one process. Its methods may be called from several goroutines.
type Actor struct {
	plan Plan
	cfg  Config

	spending sync.Mutex // held while Spend is asked, so that an answer is about the next occurrence

	mu         sync.Mutex // guards what follows
	generation uint64
	rank       int // -1 without a ring
	step       int64
	first      []int          // by rule: the occurrence that this process asks for first
	spent      []int          // by rule: how many occurrences from there are spent
	told       []bool         // by rule: what is told once, that Spend failed or what always fires
	sent       map[Phase]uint // messages of this step
}

// New makes an Actor. Without a plan every hook passes at once.
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
		spent: make([]int, len(plan)), told: make([]bool, len(plan)), sent: map[Phase]uint{}}
	for i, r := range plan {
		if r.Times > 0 {
			a.first[i] = rand.IntN(r.Times)
		}
	}
	return a, nil
}

// SetRing says which rank the process has from now on, in which generation; -1: in no ring, where
// no rule matches.
func (a *Actor) SetRing(generation uint64, rank int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.generation, a.rank, a.step = generation, rank, 0
	clear(a.sent)
}

// At is the trainer's hook before a phase of a step (from 1): the process may die, halt or be
// delayed in it. The error is ctx's, or ErrKilled.
func (a *Actor) At(ctx context.Context, phase string, step int64) error {
	if len(a.plan) == 0 {
		return nil
	}
	p := Phase(phase)
	if !slices.Contains(moments(), p) {
		panic(fmt.Sprintf("rehearsal: phase %q of the trainer; there are %v", phase, moments()))
	}
	if p != Load && p != Checkpoint { // those run ahead of the step, or behind it
		a.enter(step)
	}
	return a.moment(ctx, p, step, 1)
}

// Again is At in a step's later passes: in pass n, from 2.
func (a *Actor) Again(ctx context.Context, phase string, step int64, n int) error {
	if len(a.plan) == 0 {
		return nil
	}
	p := Phase(phase)
	if !slices.Contains([]Phase{Load, Forward, Backward}, p) || n < 2 {
		panic(fmt.Sprintf("rehearsal: phase %q of pass %d", phase, n))
	}
	return a.moment(ctx, p, step, n)
}

// moment does what a process does to itself in a phase of a pass, from 1.
func (a *Actor) moment(ctx context.Context, p Phase, step int64, pass int) error {
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

// enter notes the step being done, for the messages.
func (a *Actor) enter(step int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.step != step {
		a.step = step
		clear(a.sent)
	}
}

// act does what a process does to itself.
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

// Message is the links' hook before a message is sent in one of the ring's phases. The step is the
// one that At was told last; before the ring's first, while it forms, no rule matches. The process
// may die or halt in it. The error is ErrKilled, or Stop's.
func (a *Actor) Message(ctx context.Context, phase string) (Verdict, error) {
	if len(a.plan) == 0 {
		return Verdict{}, nil
	}
	p := Phase(phase)
	if !slices.Contains(messages(), p) {
		panic(fmt.Sprintf("rehearsal: phase %q of the ring; there are %v", phase, messages()))
	}
	step, number := a.message(p)
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

// message counts a message of a phase: it returns its step, 0 before the ring's first, and how many
// that phase of the step had before it.
func (a *Actor) message(p Phase) (step int64, number uint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	step, number = a.step, a.sent[p]
	a.sent[p]++
	return step, number
}

// Spoil is the trainer's hook in a step (from 1): it says whether to make a value of the gradient
// NaN, and whether to flip a bit of the parameters after the update.
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

// The operations of storage that Disk is asked about.
const (
	OpCreate = "create"
	OpWrite  = "write"
	OpSync   = "sync"
	OpRename = "rename"
)

// Disk is the hook before an operation on a checkpoint's files, of a step from 1: disk-full fails a
// write, fsync-error a sync, io-error any.
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

// fires says whether rule i is to be carried out here and now, and takes one of its times.
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
	a.tell(i, fmt.Sprintf("rehearsal: %s rank %d at step %d, phase %s", strings.TrimSpace(
		fmt.Sprintf("%s %s", r.Verb, r.duration())), rank, step, phase))
	return true
}

// tell logs a fault. Of a rule that fires whenever it matches only the first is told: whoever
// ordered it knows of the others, of which there may be one a message. What chance draws nobody
// knows before.
func (a *Actor) tell(i int, line string) {
	if r := a.plan[i]; r.Times > 0 || r.Chance < 1 {
		a.cfg.Log(line)
	} else if a.once(i) {
		a.cfg.Log(line + ", and whenever it matches: told once")
	}
}

func (r Rule) duration() string {
	if r.For == 0 {
		return ""
	}
	return "for " + r.For.String() + ":"
}

// take spends an occurrence of rule i that nobody in the job has spent yet.
func (a *Actor) take(ctx context.Context, i int) bool {
	a.spending.Lock()
	defer a.spending.Unlock()
	ctx, cancel := context.WithTimeout(ctx, spendLimit)
	defer cancel()
	times := a.plan[i].Times
	for n := a.known(i); n < times; n++ {
		mine, err := a.cfg.Spend(ctx, i, (a.first[i]+n)%times)
		if err != nil {
			a.complain(i, err)
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

// known returns how many occurrences of rule i are known to be spent.
func (a *Actor) known(i int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spent[i]
}

// once returns true the first time that it is asked for rule i.
func (a *Actor) once(i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told[i]
	a.told[i] = true
	return !told
}

// complain says once a rule that it could not be noted.
func (a *Actor) complain(i int, err error) {
	if a.once(i) {
		a.cfg.Log(fmt.Sprintf("rehearsal: %q is not done while the job cannot note it: %v",
			a.plan[i], err))
	}
}

// draw returns a number in [0, 1) that depends on nothing else.
func (r Rule) draw(generation uint64, rank int, step int64, phase Phase, message uint) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %s %d", generation, rank, step, phase, message)
	return rand.New(rand.NewPCG(r.Seed, h.Sum64())).Float64()
}
