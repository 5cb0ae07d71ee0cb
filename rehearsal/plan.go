package rehearsal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Verb names a fault.
type Verb string

// The verbs.
const (
	Kill       Verb = "kill"
	Stop       Verb = "stop"
	Delay      Verb = "delay"
	Drop       Verb = "drop"
	Duplicate  Verb = "duplicate"
	Corrupt    Verb = "corrupt"
	NaN        Verb = "nan"
	DiskFull   Verb = "disk-full"
	FsyncError Verb = "fsync-error"
	IOError    Verb = "io-error"
)

// Phase is a part of a step.
type Phase string

// The phases, in a step's order. Messages are sent in Carry, ReduceScatter and AllGather.
const (
	Load          Phase = "load"
	Forward       Phase = "forward"
	Backward      Phase = "backward"
	Carry         Phase = "carry"
	ReduceScatter Phase = "reduce-scatter"
	AllGather     Phase = "all-gather"
	Update        Phase = "update"
	Checkpoint    Phase = "checkpoint"
)

// AnyRank is Rule.Rank for rank=*.
const AnyRank = -1

// MaxRules is the largest number of rules in a plan.
const MaxRules = 256

// maxFor bounds the length of a delay or stop. It is longer than any deadline in a rehearsed job.
const maxFor = 24 * time.Hour

// Rule is one requested fault.
type Rule struct {
	Verb     Verb
	Rank     int   // AnyRank: any rank
	From, To int64 // steps, inclusive; 0 and 0: any
	Phase    Phase // empty: see Rule.in
	Pass     int   // pass of the step, from 1; 0: the first
	Chance   float64
	Seed     uint64
	Times    int // 0: at every match
	For      time.Duration
}

// Plan is the list of requested faults.
type Plan []Rule

// ringPhases returns the phases in which the ring sends messages.
func ringPhases() []Phase { return []Phase{Carry, ReduceScatter, AllGather} }

func trainerPhases() []Phase { return []Phase{Load, Forward, Backward, Update, Checkpoint} }

func allPhases() []Phase {
	return []Phase{Load, Forward, Backward, Carry, ReduceScatter, AllGather, Update, Checkpoint}
}

// Phases returns the phases in which a verb can fire, or nil for an unknown verb.
func (v Verb) Phases() []Phase {
	switch v {
	case Kill, Stop, Delay:
		return allPhases()
	case Drop, Duplicate:
		return ringPhases()
	case Corrupt:
		return append(ringPhases(), Update)
	case NaN:
		return []Phase{Backward}
	case DiskFull, FsyncError, IOError:
		return []Phase{Checkpoint}
	}
	return nil
}

func verbs() []Verb {
	return []Verb{Kill, Stop, Delay, Drop, Duplicate, Corrupt, NaN, DiskFull, FsyncError, IOError}
}

// Parse parses a request; an empty one gives an empty plan. The error quotes the rule and says what
// is allowed.
func Parse(text string) (Plan, error) {
	var plan Plan
	for part := range strings.SplitSeq(text, ";") {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		rule, err := parseRule(words)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.Join(words, " "), err)
		}
		if plan = append(plan, rule); len(plan) > MaxRules {
			return nil, fmt.Errorf("more than %d rules", MaxRules)
		}
	}
	return plan, nil
}

func parseRule(words []string) (Rule, error) {
	rule := Rule{Verb: Verb(words[0]), Chance: 1, Seed: 1, Times: 1}
	if !slices.Contains(verbs(), rule.Verb) {
		return rule, fmt.Errorf("unknown verb %q; there are %s", words[0], list(verbs()))
	}
	given := map[string]bool{}
	for _, word := range words[1:] {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return rule, fmt.Errorf("%q is not key=value", word)
		}
		if given[key] {
			return rule, fmt.Errorf("%s= is given twice", key)
		}
		given[key] = true
		if err := rule.set(key, value); err != nil {
			return rule, err
		}
	}
	return rule, rule.check(given)
}

// set parses one key.
func (r *Rule) set(key, value string) (err error) {
	wrong := func(want string) error { return fmt.Errorf("%s=%s is not %s", key, value, want) }
	switch key {
	case "rank":
		if value == "*" {
			r.Rank = AnyRank
			return nil
		}
		if r.Rank, err = strconv.Atoi(value); err != nil || r.Rank < 0 {
			return wrong("a rank from 0, or * for any")
		}
	case "step":
		from, to, isRange := strings.Cut(value, "-")
		if !isRange {
			to = from
		}
		var errTo error
		r.From, err = strconv.ParseInt(from, 10, 64)
		r.To, errTo = strconv.ParseInt(to, 10, 64)
		if err != nil || errTo != nil || r.From < 1 || r.To < r.From {
			return wrong("a step from 1, or a range such as 20-30")
		}
	case "phase":
		r.Phase = Phase(value)
		if !slices.Contains(allPhases(), r.Phase) {
			return wrong("one of " + list(allPhases()))
		}
	case "pass":
		if r.Pass, err = strconv.Atoi(value); err != nil || r.Pass < 1 {
			return wrong("a pass of the step, from 1")
		}
	case "chance":
		r.Chance, err = strconv.ParseFloat(value, 64)
		if err != nil || !(r.Chance > 0 && r.Chance <= 1) {
			return wrong("a probability above 0, at most 1")
		}
	case "seed":
		if r.Seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			return wrong("a whole number from 0")
		}
	case "times":
		if r.Times, err = strconv.Atoi(value); err != nil || r.Times < 0 {
			return wrong("a whole number from 0, where 0 is every time")
		}
	case "for":
		r.For, err = time.ParseDuration(value)
		if err != nil || r.For <= 0 || r.For > maxFor {
			return wrong(fmt.Sprintf("a duration such as 200ms, at most %v", maxFor))
		}
	default:
		return fmt.Errorf("unknown key %q; there are rank, step, phase, pass, chance, seed, "+
			"times, for", key)
	}
	return nil
}

// check checks the given keys against the verb and each other.
func (r *Rule) check(given map[string]bool) error {
	if !given["rank"] {
		return fmt.Errorf("rank= is missing: give rank=N, the rank in the ring, or rank=* for any")
	}
	if suits := r.Verb.Phases(); r.Phase != "" && !slices.Contains(suits, r.Phase) {
		return fmt.Errorf("%s has no phase=%s; it has %s", r.Verb, r.Phase, list(suits))
	}
	inPass := []Phase{Load, Forward, Backward}
	if suits := r.Verb == Kill || r.Verb == Stop || r.Verb == Delay; given["pass"] && (!suits ||
		r.Phase != "" && !slices.Contains(inPass, r.Phase)) {
		return fmt.Errorf("pass= is for kill, stop and delay in %s", list(inPass))
	}
	timed := r.Verb == Delay || r.Verb == Stop
	if given["for"] && !timed {
		return fmt.Errorf("for= is for delay and stop, not for %s", r.Verb)
	}
	if r.Verb == Delay && r.For == 0 {
		return fmt.Errorf("delay needs for=, such as for=200ms")
	}
	if given["seed"] && !given["chance"] {
		return fmt.Errorf("seed= is for chance=, which is not given")
	}
	return nil
}

// in reports whether the rule fires in a phase. Without phase=, kill, stop and delay fire in load,
// at the beginning of a step; other verbs fire in any phase that they can hit.
func (r Rule) in(phase Phase) bool {
	if r.Phase == "" && (r.Verb == Kill || r.Verb == Stop || r.Verb == Delay) {
		return phase == Load
	}
	return r.Phase == "" || r.Phase == phase
}

// Messages reports whether the rule concerns only messages of the ring.
func (r Rule) Messages() bool {
	return r.Verb == Drop || r.Verb == Duplicate || slices.Contains(ringPhases(), r.Phase)
}

// list joins words for an error message.
func list[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}

// String formats a rule as Parse reads it, without defaults.
func (r Rule) String() string {
	rank := strconv.Itoa(r.Rank)
	if r.Rank == AnyRank {
		rank = "*"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s rank=%s", r.Verb, rank)
	if r.From == r.To && r.From > 0 {
		fmt.Fprintf(&b, " step=%d", r.From)
	} else if r.To > 0 {
		fmt.Fprintf(&b, " step=%d-%d", r.From, r.To)
	}
	if r.Phase != "" {
		fmt.Fprintf(&b, " phase=%s", r.Phase)
	}
	if r.Pass > 0 {
		fmt.Fprintf(&b, " pass=%d", r.Pass)
	}
	if r.For > 0 {
		fmt.Fprintf(&b, " for=%v", r.For)
	}
	if r.Chance < 1 {
		fmt.Fprintf(&b, " chance=%s seed=%d", strconv.FormatFloat(r.Chance, 'g', -1, 64), r.Seed)
	}
	if r.Times != 1 {
		fmt.Fprintf(&b, " times=%d", r.Times)
	}
	return b.String()
}

// String formats a plan as Parse reads it.
func (p Plan) String() string {
	rules := make([]string, len(p))
	for i, r := range p {
		rules[i] = r.String()
	}
	return strings.Join(rules, "; ")
}
