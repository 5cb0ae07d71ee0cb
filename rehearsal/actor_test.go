package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// job simulates what the processes of a job share: the spent occurrences.
type job struct {
	mu    sync.Mutex
	spent map[[2]int]bool
	asked int
	fired map[int]bool
	err   error
}

func (j *job) spend(_ context.Context, rule, occurrence int) (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked++
	if j.err != nil || j.spent[[2]int{rule, occurrence}] {
		return false, j.err
	}
	if j.spent == nil {
		j.spent = map[[2]int]bool{}
	}
	j.spent[[2]int{rule, occurrence}] = true
	return true, nil
}

func (j *job) fire(_ context.Context, rule int) (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first := !j.fired[rule]
	if j.fired == nil {
		j.fired = map[int]bool{}
	}
	j.fired[rule] = true
	return first, j.err
}

// process is an Actor that records its faults instead of carrying them out.
type process struct {
	*Actor
	mu    sync.Mutex
	lines []string
	kills int
	stops []time.Duration
}

func (j *job) start(t *testing.T, order string) *process {
	t.Helper()
	plan, err := Parse(order)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{}
	p.Actor, err = New(plan, Config{
		Spend: j.spend,
		Fire:  j.fire,
		Log: func(line string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.lines = append(p.lines, line)
		},
		Kill: func() { p.kills++ },
		Stop: func(d time.Duration) error { p.stops = append(p.stops, d); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPasses: a rule fires in the pass that it names, or in the first.
func TestPasses(t *testing.T) {
	for order, want := range map[string]int{
		"kill rank=0 step=2 phase=backward":        1,
		"kill rank=0 step=2 pass=1":                1,
		"kill rank=0 step=2 phase=backward pass=3": 3,
		"kill rank=0 step=2 pass=2":                2,
		"kill rank=0 step=2 pass=4":                0,
	} {
		var j job
		p := j.start(t, order)
		p.SetRing(1, 0)
		killed := 0
		for step := int64(1); step <= 3; step++ {
			for pass := 1; pass <= 3; pass++ {
				for _, phase := range []Phase{Load, Forward, Backward} {
					if p.pass(t, phase, step, pass) {
						killed = 10*killed + pass
					}
				}
			}
		}
		if killed != want {
			t.Errorf("%s: killed in pass %d", order, killed)
		}
	}
}

// pass enters a phase of a pass and reports whether the process dies there.
func (p *process) pass(t *testing.T, phase Phase, step int64, n int) (dies bool) {
	t.Helper()
	var err error
	if n == 1 {
		err = p.At(t.Context(), string(phase), step)
	} else {
		err = p.Again(t.Context(), string(phase), step, n)
	}
	if err != nil && !errors.Is(err, ErrKilled) {
		t.Fatal(err)
	}
	return err != nil
}

// TestKilledOnceInTheJob: the survivors' ring repeats the step, and another process has the killed
// rank. It must not be killed too.
func TestKilledOnceInTheJob(t *testing.T) {
	var j job
	ranks := []*process{}
	for rank := range 3 {
		p := j.start(t, "kill rank=1 step=20 phase=update")
		p.SetRing(1, rank)
		ranks = append(ranks, p)
	}
	step := func(n int64, of ...*process) (killed []int) {
		for i, p := range of {
			if err := p.At(t.Context(), "update", n); errors.Is(err, ErrKilled) {
				killed = append(killed, i)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return killed
	}
	if got := step(19, ranks...); got != nil {
		t.Errorf("killed %d at step 19", got)
	}
	if got := step(20, ranks...); !slices.Equal(got, []int{1}) {
		t.Errorf("killed %d at step 20", got)
	}
	ranks[2].SetRing(2, 1)
	if got := step(20, ranks[0], ranks[2]); got != nil {
		t.Errorf("killed %d when step 20 was repeated", got)
	}
	again := j.start(t, "kill rank=1 step=20 phase=update") // the killed process, restarted
	again.SetRing(3, 1)
	if got := step(20, again); got != nil {
		t.Error("killed again after its restart")
	}
	if want := []string{"rehearsal: kill rank 1 at step 20, phase update"}; !slices.Equal(
		ranks[1].lines, want) || ranks[1].kills != 1 {
		t.Errorf("%d kills, told %q", ranks[1].kills, ranks[1].lines)
	}
}

// TestWithoutAPhase checks where a rule without phase= fires; it fires once per step.
func TestWithoutAPhase(t *testing.T) {
	for order, want := range map[string][]string{
		"kill rank=0 step=2 times=0":         {"load"},
		"stop rank=0 step=2 times=0 for=1s":  {"load"},
		"delay rank=0 step=2 times=0 for=1h": {"load"},
		"drop rank=0 step=2 times=0":         {"carry", "reduce-scatter", "all-gather"},
		"duplicate rank=0 step=2 times=0":    {"carry", "reduce-scatter", "all-gather"},
		"corrupt rank=0 step=2 times=0":      {"flip"},
		"nan rank=0 step=2 times=0":          {"nan"},
	} {
		var j job
		p := j.start(t, order)
		p.SetRing(1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // so a delay returns an error and does not wait
		var got []string
		note := func(what string, happened bool) {
			if happened {
				got = append(got, what)
			}
		}
		for step := int64(1); step <= 3; step++ {
			for _, phase := range allPhases() {
				if slices.Contains(ringPhases(), phase) {
					v, err := p.Message(ctx, string(phase))
					note(string(phase), err != nil || v != Verdict{})
				} else {
					stops := len(p.stops)
					err := p.At(ctx, string(phase), step)
					note(string(phase), err != nil || len(p.stops) > stops)
				}
			}
			nan, flip := p.Spoil(ctx, step)
			note("nan", nan)
			note("flip", flip)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: in %q; want %q", order, got, want)
		}
	}
}

// TestTimes counts the faults in all processes, and checks that Spend is not called needlessly.
func TestTimes(t *testing.T) {
	for times, want := range map[int]int{1: 1, 7: 7, 0: 60} {
		var j job
		fired := 0
		var processes []*process
		for rank := range 3 {
			p := j.start(t, fmt.Sprintf("kill rank=* phase=load times=%d", times))
			p.SetRing(1, rank)
			processes = append(processes, p)
		}
		for step := int64(1); step <= 20; step++ {
			for _, p := range processes {
				if p.At(t.Context(), "load", step) != nil {
					fired++
				}
			}
		}
		if fired != want {
			t.Errorf("times=%d: fired %d times", times, fired)
		}
		if j.asked > 3*times {
			t.Errorf("times=%d: asked %d times", times, j.asked)
		}
	}
}

// TestUnfired: at the end one process knows which rules have fired in no process.
func TestUnfired(t *testing.T) {
	const order = "delay rank=0 step=1 for=1ms; delay rank=1 step=2 for=1ms times=0; " +
		"kill rank=2; nan rank=0 step=9"
	var j job
	var last *process
	for rank := range 2 {
		last = j.start(t, order)
		last.SetRing(1, rank)
		for step := int64(1); step <= 3; step++ {
			check(t, last.At(t.Context(), "load", step))
			last.Spoil(t.Context(), step)
		}
	}
	if got := last.Unfired(t.Context()).String(); got != "kill rank=2; nan rank=0 step=9" {
		t.Errorf("unfired: %s", got)
	}
	j.err = errors.New("no store")
	if got := last.Unfired(t.Context()); got != nil {
		t.Errorf("without a store: %v", got)
	}
}

func TestNothingWithoutARingOrAPlan(t *testing.T) {
	var j job
	p := j.start(t, "kill rank=* times=0; nan rank=* times=0; io-error rank=* times=0")
	idle := j.start(t, "")
	idle.SetRing(1, 0)
	for range 2 {
		for _, p := range []*process{p, idle} {
			nan, flip := p.Spoil(t.Context(), 1)
			v, err := p.Message(t.Context(), "carry")
			if p.At(t.Context(), "load", 1) != nil || nan || flip || err != nil ||
				v != (Verdict{}) || p.Disk(t.Context(), 1, OpSync) != nil {
				t.Error("something happened")
			}
		}
		p.SetRing(1, 2)
		if p.At(t.Context(), "load", 1) == nil {
			t.Error("nothing happened in a ring")
		}
		p.SetRing(2, -1)
	}
	if _, err := New(Plan{{Verb: Kill, Times: 1}}, Config{}); err == nil {
		t.Error("an Actor without Spend for a rule that needs it")
	}
	for _, broken := range []func(){
		func() { _ = p.At(t.Context(), "carry", 1) },
		func() { _, _ = p.Message(t.Context(), "load") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic for a phase of somebody else")
				}
			}()
			broken()
		}()
	}
}

// TestMessages checks the verdicts for the messages of a step.
func TestMessages(t *testing.T) {
	for order, want := range map[string][]Act{
		"drop rank=1 step=2":                          {Pass, Lose, Pass},
		"duplicate rank=1 step=2 times=2":             {Pass, Double, Double},
		"corrupt rank=1 phase=carry":                  {Flip, Pass, Pass},
		"corrupt rank=1":                              {Pass, Pass, Pass}, // of the parameters
		"corrupt rank=1 phase=all-gather":             {Pass, Pass, Pass},
		"delay rank=1 phase=carry for=1s times=0":     {Wait, Wait, Wait},
		"drop rank=1 step=2; duplicate rank=1 step=2": {Pass, Lose, Double},
		"nan rank=1; disk-full rank=1; drop rank=0":   {Pass, Pass, Pass},
	} {
		var j job
		p := j.start(t, order)
		p.SetRing(1, 1)
		var got []Act
		for _, step := range []int64{1, 2, 2} {
			if err := p.At(t.Context(), "backward", step); err != nil {
				t.Fatal(err)
			}
			// A batch read ahead, or a checkpoint, does not change the current step.
			if err := p.At(t.Context(), "checkpoint", 1); err != nil {
				t.Fatal(err)
			}
			v, err := p.Message(t.Context(), "carry")
			if err != nil || (v.Act == Wait) != (v.For == time.Second) {
				t.Errorf("%q: %+v, %v", order, v, err)
			}
			got = append(got, v.Act)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v; want %v", order, got, want)
		}
	}
	var j job
	p := j.start(t, "kill rank=0 phase=all-gather; stop rank=0 phase=reduce-scatter for=3s")
	p.SetRing(1, 0)
	check(t, p.At(t.Context(), "forward", 1))
	if _, err := p.Message(t.Context(), "reduce-scatter"); err != nil || len(p.stops) != 1 ||
		p.stops[0] != 3*time.Second {
		t.Errorf("stopped %v, %v", p.stops, err)
	}
	if _, err := p.Message(t.Context(), "all-gather"); !errors.Is(err, ErrKilled) {
		t.Error(err)
	}
}

// TestNoMessagesWhileARingForms: no rule matches a ring's messages before its first step, even if
// the process has done steps in another ring.
func TestNoMessagesWhileARingForms(t *testing.T) {
	for _, rule := range []string{"kill", "stop", "delay for=1s", "drop", "duplicate", "corrupt"} {
		for _, phase := range []string{"carry", "reduce-scatter", "all-gather"} {
			var j job
			p := j.start(t, fmt.Sprintf("%s rank=0 phase=%s times=0", rule, phase))
			hit := func() bool {
				stops := len(p.stops)
				v, err := p.Message(t.Context(), phase)
				return v != Verdict{} || err != nil || len(p.stops) > stops
			}
			for generation := range uint64(3) {
				p.SetRing(generation, 0)
				check(t, p.At(t.Context(), "checkpoint", 5)) // for an earlier step
				if hit() {
					t.Errorf("%s in %s while ring %d forms", rule, phase, generation)
				}
				check(t, p.At(t.Context(), "load", 6))
				check(t, p.At(t.Context(), "forward", 6))
				if !hit() {
					t.Errorf("no %s in %s in the first step of ring %d", rule, phase, generation)
				}
			}
		}
	}
}

func TestSpoilAndDisk(t *testing.T) {
	var j job
	p := j.start(t, "nan rank=0 step=1; corrupt rank=0 step=2; "+
		"corrupt rank=0 step=3 phase=update; corrupt rank=0 step=4 phase=carry")
	p.SetRing(1, 0)
	for i, want := range [][2]bool{{true, false}, {false, true}, {false, true}, {false, false}} {
		if nan, flip := p.Spoil(t.Context(), int64(i+1)); nan != want[0] || flip != want[1] {
			t.Errorf("step %d: NaN %v, flip %v", i+1, nan, flip)
		}
	}
	ops := []string{OpCreate, OpWrite, OpSync, OpRename}
	for order, want := range map[string]map[string]error{
		"disk-full rank=0 step=40 times=0":   {OpWrite: syscall.ENOSPC},
		"fsync-error rank=0 step=40 times=0": {OpSync: syscall.EIO},
		"io-error rank=0 step=40 times=0": {OpCreate: syscall.EIO, OpWrite: syscall.EIO,
			OpSync: syscall.EIO, OpRename: syscall.EIO},
	} {
		p := j.start(t, order)
		p.SetRing(1, 0)
		for _, op := range ops {
			if err := p.Disk(t.Context(), 40, op); !errors.Is(err, want[op]) {
				t.Errorf("%q: %s: %v", order, op, err)
			}
			if err := p.Disk(t.Context(), 41, op); err != nil {
				t.Errorf("%q: %s of step 41: %v", order, op, err)
			}
		}
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j job
		p := j.start(t, "delay rank=0 for=5s phase=forward times=0")
		p.SetRing(1, 0)
		began := time.Now()
		err := p.At(t.Context(), "forward", 1)
		if err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		err = p.At(ctx, "forward", 2)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		want := "rehearsal: delay for 5s: rank 0 at step 1, phase forward, and at every match: " +
			"logged once"
		if len(p.lines) != 1 || p.lines[0] != want {
			t.Errorf("told %q; want %q", p.lines, want)
		}
	})
}

// TestTold: every fault is logged, but only the first of a rule that fires at every match.
func TestTold(t *testing.T) {
	for order, want := range map[string]int{
		"drop rank=0 phase=carry times=0":                        1,
		"drop rank=0 phase=carry times=0; drop rank=0 times=0":   2,
		"drop rank=0 phase=carry times=4":                        4,
		"drop rank=0 phase=carry chance=0.999999999999999":       1,
		"drop rank=0 chance=0.999999999999999 seed=2 times=0":    40,
		"drop rank=0 phase=carry times=0; nan rank=0 times=0":    2,
		"nan rank=0 chance=0.5 times=0":                          -1,
		"duplicate rank=0 step=2-3 times=0; nan rank=0 times=10": 11,
	} {
		var j job
		p := j.start(t, order)
		fired := 0
		for ring := range uint64(2) { // a new ring does not log it again
			p.SetRing(ring, 0)
			for step := int64(1); step <= 10; step++ {
				check(t, p.At(t.Context(), "forward", step))
				for _, phase := range []string{"carry", "all-gather"} {
					_, err := p.Message(t.Context(), phase)
					check(t, err)
				}
				if nan, _ := p.Spoil(t.Context(), step); nan {
					fired++
				}
			}
		}
		if want < 0 {
			want = fired // every one that chance drew
		}
		if len(p.lines) != want {
			t.Errorf("%q: told %d times, want %d: %q", order, len(p.lines), want, p.lines)
		}
	}
}

// TestChance: one history always draws the same faults; another generation draws others; their
// number fits the probability.
func TestChance(t *testing.T) {
	draw := func(generation uint64, seed int) (fired []int64) {
		var j job
		p := j.start(t, fmt.Sprintf("kill rank=* phase=load chance=0.1 seed=%d times=0", seed))
		p.SetRing(generation, 1)
		for step := int64(1); step <= 5000; step++ {
			if p.At(t.Context(), "load", step) != nil {
				fired = append(fired, step)
			}
		}
		return fired
	}
	first := draw(1, 7)
	// The standard deviation of 5000 draws at 0.1 is 21.
	if n := len(first); n < 400 || n > 600 {
		t.Errorf("%d of 5000", n)
	}
	if !slices.Equal(first, draw(1, 7)) {
		t.Error("the same history drew something else")
	}
	if slices.Equal(first, draw(2, 7)) || slices.Equal(first, draw(1, 8)) {
		t.Error("another generation or seed drew the same")
	}
}

// TestNotNoted: while Spend fails there are no faults, and the error is logged once.
func TestNotNoted(t *testing.T) {
	j := job{err: errors.New("etcd is away")}
	p := j.start(t, "kill rank=0 phase=load")
	p.SetRing(1, 0)
	for range 3 {
		if err := p.At(t.Context(), "load", 1); err != nil {
			t.Error(err)
		}
	}
	if len(p.lines) != 1 || !strings.Contains(p.lines[0], "etcd is away") {
		t.Errorf("told %q", p.lines)
	}
	j.err = nil
	if err := p.At(t.Context(), "load", 1); !errors.Is(err, ErrKilled) {
		t.Errorf("when etcd is back: %v", err)
	}
}

// TestManyGoroutines calls all hooks concurrently. No fault may happen twice.
func TestManyGoroutines(t *testing.T) {
	var j job
	p := j.start(t, "drop rank=0 times=5; duplicate rank=0 times=3; io-error rank=0 times=4; "+
		"nan rank=0 times=2")
	p.SetRing(1, 0)
	var mu sync.Mutex
	counts := map[string]int{}
	note := func(what string, happened bool) {
		mu.Lock()
		defer mu.Unlock()
		if happened {
			counts[what]++
		}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for step := range int64(50) {
				_ = p.At(t.Context(), "forward", step+1)
				v, _ := p.Message(t.Context(), "carry")
				note(v.Act.String(), v.Act != Pass)
				note("disk", p.Disk(t.Context(), step+1, OpSync) != nil)
				nan, _ := p.Spoil(t.Context(), step+1)
				note("nan", nan)
			}
		})
	}
	all.Wait()
	if got := fmt.Sprint(counts); got != "map[disk:4 double:3 lose:5 nan:2]" {
		t.Error(got)
	}
}
