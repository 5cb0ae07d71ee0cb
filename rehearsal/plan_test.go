package rehearsal

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	rule := func(verb Verb, rank int, change func(*Rule)) Plan {
		r := Rule{Verb: verb, Rank: rank, Chance: 1, Seed: 1, Times: 1}
		if change != nil {
			change(&r)
		}
		return Plan{r}
	}
	for text, want := range map[string]Plan{
		"":            nil,
		" ; ;":        nil,
		"kill rank=1": rule(Kill, 1, nil),
		"kill rank=1 step=20 phase=all-gather": rule(Kill, 1, func(r *Rule) {
			r.From, r.To, r.Phase = 20, 20, AllGather
		}),
		"kill rank=1 phase=backward pass=2": rule(Kill, 1, func(r *Rule) {
			r.Phase, r.Pass = Backward, 2
		}),
		"stop rank=* for=5s": rule(Stop, AnyRank, func(r *Rule) { r.For = 5 * time.Second }),
		"delay  step=3-4 rank=0 for=200ms times=0;": rule(Delay, 0, func(r *Rule) {
			r.From, r.To, r.For, r.Times = 3, 4, 200*time.Millisecond, 0
		}),
		"drop rank=2 chance=0.25 seed=9 times=3": rule(Drop, 2, func(r *Rule) {
			r.Chance, r.Seed, r.Times = 0.25, 9, 3
		}),
		"corrupt rank=0 phase=carry":  rule(Corrupt, 0, func(r *Rule) { r.Phase = Carry }),
		"corrupt rank=0 phase=update": rule(Corrupt, 0, func(r *Rule) { r.Phase = Update }),
		"nan rank=1; disk-full rank=0 phase=checkpoint": append(rule(NaN, 1, nil),
			rule(DiskFull, 0, func(r *Rule) { r.Phase = Checkpoint })...),
		"fsync-error rank=0": rule(FsyncError, 0, nil),
		"io-error rank=0":    rule(IOError, 0, nil),
		"duplicate rank=0":   rule(Duplicate, 0, nil),
	} {
		got, err := Parse(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"explode rank=1": `"explode rank=1": unknown verb "explode"; there are kill, stop, ` +
			`delay, drop, duplicate, corrupt, nan, disk-full, fsync-error, io-error`,
		"kill rank=0; kill": `"kill": rank= is missing: give rank=N, the rank in ` +
			`the ring, or rank=* for any`,
		"kill rank=1 phase=lunch": `"kill rank=1 phase=lunch": phase=lunch is not one of load, ` +
			`forward, backward, carry, reduce-scatter, all-gather, update, checkpoint`,
		"drop rank=1 phase=load":         "drop has no phase=load; it has carry, reduce-scatter",
		"corrupt rank=1 phase=load":      "corrupt has no phase=load; it has carry",
		"nan rank=1 phase=update":        "nan has no phase=update; it has backward",
		"io-error rank=1 phase=update":   "io-error has no phase=update; it has checkpoint",
		"kill rank=-1":                   "rank=-1 is not a rank from 0, or * for any",
		"kill rank=first":                "rank=first is not a rank",
		"kill rank=1 step=0":             "step=0 is not a step from 1, or a range such as 20-30",
		"kill rank=1 step=5-4":           "step=5-4 is not a step",
		"kill rank=1 step=5-":            "step=5- is not a step",
		"kill rank=1 step=x":             "step=x is not a step",
		"kill rank=1 chance=0":           "chance=0 is not a probability above 0, at most 1",
		"kill rank=1 chance=1.5":         "chance=1.5 is not a probability",
		"kill rank=1 chance=NaN":         "chance=NaN is not a probability",
		"kill rank=1 chance=0.5 seed=-1": "seed=-1 is not a whole number from 0",
		"kill rank=1 seed=1":             "seed= is for chance=, which is not given",
		"kill rank=1 times=-1":           "times=-1 is not a whole number from 0",
		"kill rank=1 pass=0":             "pass=0 is not a pass of the step, from 1",
		"kill rank=1 pass=2 phase=carry": "pass= is for kill, stop and delay in load, forward",
		"nan rank=1 pass=2":              "pass= is for kill, stop and delay in load, forward",
		"kill rank=1 for=1s":             "for= is for delay and stop, not for kill",
		"delay rank=1":                   "delay needs for=, such as for=200ms",
		"delay rank=1 for=0s":            "for=0s is not a duration such as 200ms",
		"delay rank=1 for=25h":           "for=25h is not a duration such as 200ms, at most 24h",
		"kill rank=1 rank=2":             "rank= is given twice",
		"kill rank":                      `"rank" is not key=value`,
		"kill rank=1 host=b": `unknown key "host"; there are rank, step, phase, pass, ` +
			`chance, seed, times, for`,
		strings.Repeat("kill rank=1;", MaxRules+1): "more than 256 rules",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// FuzzParse parses the output of String.
func FuzzParse(f *testing.F) {
	f.Add("kill rank=1 step=20 phase=all-gather; delay rank=* for=50ms chance=0.1 times=0")
	f.Add("corrupt rank=0 step=1-9 chance=1e-9 seed=18446744073709551615 times=7")
	f.Add("stop rank=2 for=1h2m3.5s;;nan rank=*")
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := Parse(text)
		if err != nil {
			return
		}
		for i := range plan {
			if plan[i].Chance == 1 {
				plan[i].Seed = 1 // it has no effect, so String omits it
			}
		}
		again, err := Parse(plan.String())
		if err != nil || !reflect.DeepEqual(plan, again) {
			t.Errorf("%q is written %q, which reads %+v, %v", text, plan, again, err)
		}
	})
}
