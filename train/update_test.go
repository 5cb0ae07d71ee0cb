package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/compute/devicetest"
	"rondo/train/agree"
	"rondo/train/optim"
)

// noticed is a device that records its operations and waits in order.
type noticed struct {
	compute.Device
	noted *[]string
}

func (w noticed) note(what string) { *w.noted = append(*w.noted, what) }

func (w noticed) NewOutput(s compute.OutputShape) compute.Output {
	return noticedOutput{w.Device.NewOutput(s), w}
}

func (w noticed) NewClipper() compute.Clipper { return noticedClipper{w.Device.NewClipper(), w} }

type noticedOutput struct {
	compute.Output
	w noticed
}

func (o noticedOutput) ForwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) {
	o.w.note("output")
	o.Output.ForwardBackward(x, w, b, targets, scale, dx, dw, db)
}

func (o noticedOutput) Sum() float64 { o.w.note("loss"); return o.Output.Sum() }

type noticedClipper struct {
	compute.Clipper
	w noticed
}

func (c noticedClipper) Clip(g []float32, by *compute.Clip, loss *compute.Loss) {
	c.w.note("clip")
	n := len(*c.w.noted)
	c.Clipper.Clip(g, by, loss)
	*c.w.noted = (*c.w.noted)[:n] // it reads the loss on the device, so nothing waits
}

func (c noticedClipper) Update(u *compute.Update, params, grads, s1, s2 []float32) {
	c.w.note("update")
	c.Clipper.Update(u, params, grads, s1, s2)
}

func (c noticedClipper) Norm() float64 { c.w.note("norm"); return c.Clipper.Norm() }

// On a device that records, a single rank queues the whole step before it waits, and reads loss and
// norm at the end. If it clips before the ring, it waits once before the ring and never after. On
// other devices the loss is known before the update.
func TestOrderOfWaits(t *testing.T) {
	const alone, ring = 0, 1 // kinds of rings
	global, worker := byNorm(1, optim.ScopeGlobal), byNorm(1, optim.ScopeWorker)
	for _, c := range []struct {
		records          bool
		ranks, recompute int
		clip             optim.Clip
		want             string
	}{
		{true, alone, 0, global, "output clip update loss norm"},
		{true, alone, 0, worker, "output clip update loss norm"},
		{true, alone, 4, global, "output loss output clip update loss norm"},
		{true, ring, 0, global, "output loss clip update norm"},
		{true, ring, 0, worker, "output clip loss norm update"},
		{false, alone, 0, global, "output loss clip update norm"},
		{false, alone, 0, worker, "output loss clip norm update"},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			var noted []string
			j := newJob(1)
			j.config.Steps, j.config.Clip, j.model.Recompute = 5, c.clip, c.recompute
			j.config.HostMemory, j.model.GradientTail = false, 0
			j.device = func(_ int, dev compute.Device) compute.Device {
				recorder := devicetest.NewRecorder(noticed{dev, &noted})
				if c.records {
					return recorder
				}
				return recorder.Stager
			}
			var reducer sumRing
			if c.ranks == ring {
				reducer = ringOfOne{}
			}
			if err := j.runRank(t.Context(), 0, reducer, &outcome{}); err != nil {
				t.Fatal(err)
			}
			want := slices.Repeat(strings.Fields(c.want), int(j.config.Steps))
			if !slices.Equal(noted, want) {
				t.Errorf("%q, want %q", noted, want)
			}
		})
	}
}

// A single rank that updates before it knows the loss gives the same bits and reports as one that
// updates afterwards, also with skipped steps.
func TestUpdatesBeforeTheLoss(t *testing.T) {
	for _, clip := range []optim.Clip{
		byNorm(0.5, optim.ScopeGlobal), byNorm(0.5, optim.ScopeWorker),
		byValue(0.1, optim.ScopeGlobal), byNorm(0, optim.ScopeGlobal),
	} {
		for _, bad := range []fault{healthy, lossNaN, gradInf} {
			t.Run(fmt.Sprintf("%v, fault %d", clip, bad), func(t *testing.T) {
				j := newJob(1)
				j.config.Steps, j.config.Clip, j.config.Optimizer.Rule = 12, clip, compute.AdamW
				j.config.Schedule = optim.Schedule{Kind: optim.Linear, Rate: 0.05}
				spoilt := func(dev compute.Device) compute.Device {
					return &faulty{dev, func(run int) fault {
						if run == 0 || run == 7 || run == 8 {
							return bad
						}
						return healthy
					}}
				}
				j.device = func(_ int, dev compute.Device) compute.Device { return spoilt(dev) }
				var want, got outcome
				if err := j.runRank(t.Context(), 0, nil, &want); err != nil {
					t.Fatal(err)
				}
				j.config.HostMemory, j.model.GradientTail = false, 0
				j.device = func(_ int, dev compute.Device) compute.Device {
					return devicetest.NewRecorder(spoilt(dev))
				}
				if err := j.runRank(t.Context(), 0, nil, &got); err != nil {
					t.Fatal(err)
				}
				devicetest.SameBits(t, "the parameters", got.params, want.params)
				if a, b := reports(&got), reports(&want); a != b {
					t.Errorf("it reports\n%s\nand would have\n%s", a, b)
				}
				if p := want.result.Progress; (p.Nonfinite == 3) != (bad != healthy) {
					t.Errorf("%+v", p)
				}
			})
		}
	}
}

// reports returns what a job has reported, without times.
func reports(o *outcome) string {
	for i := range o.steps {
		o.steps[i].TokensPerSecond = 0
	}
	return fmt.Sprintf("%+v\n%+v\n%q", o.steps, o.result.Progress, o.notices)
}

// failing is a device whose output layer fails when its loss is read, after this many reads.
type failing struct {
	compute.Device
	reads int // reads before it fails
}

func (b *failing) NewOutput(s compute.OutputShape) compute.Output {
	return failingOutput{b.Device.NewOutput(s), b}
}

type failingOutput struct {
	compute.Output
	b *failing
}

func (o failingOutput) Sum() float64 {
	if o.b.reads--; o.b.reads < 0 {
		panic(&compute.DeviceError{Device: "cpu", Doing: "reading", Err: errTest})
	}
	return o.Output.Sum()
}

// beforeStep is a Ledger that calls a function before a step runs.
type beforeStep struct {
	step int64
	do   func()
}

func (b beforeStep) Intend(step int64, _, _, _ int, _ []int32) error {
	if step == b.step {
		b.do()
	}
	return nil
}

func (beforeStep) Commit(Commit) error { return nil }

// A single rank whose ctx has ended keeps the state of the step before. If its device fails after
// the update was queued, it has no state, since the update may be partial.
func TestAloneUntilItEnds(t *testing.T) {
	run := func(steps int64, device func(compute.Device) compute.Device,
		ledger func(context.CancelCauseFunc) Ledger) (*Trainer, outcome) {
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		j := newJob(1)
		j.config.Steps, j.config.Ledger = steps, ledger(end)
		j.config.HostMemory, j.model.GradientTail = false, 0
		j.device = func(_ int, dev compute.Device) compute.Device {
			return devicetest.NewRecorder(device(dev))
		}
		var trainer *Trainer
		j.prepare = func(_ int, made *Trainer) { trainer = made }
		var o outcome
		o.err = j.runRank(ctx, 0, nil, &o)
		return trainer, o
	}
	asIs := func(dev compute.Device) compute.Device { return dev }
	_, two := run(2, asIs, func(context.CancelCauseFunc) Ledger { return nil })
	trainer, ended := run(9, asIs, func(end context.CancelCauseFunc) Ledger {
		return beforeStep{3, func() { end(errBroken) }}
	})
	if !errors.Is(ended.err, errBroken) || !trainer.HasState() || trainer.Progress().Step != 2 {
		t.Errorf("ended: %v, state %t, %+v", ended.err, trainer.HasState(), trainer.Progress())
	}
	devicetest.SameBits(t, "the parameters of the step before", ended.params, two.params)

	trainer, failed := run(9, func(dev compute.Device) compute.Device {
		return &failing{dev, 2 * 2} // the clip and the step each read it
	}, func(context.CancelCauseFunc) Ledger { return nil })
	if !errors.Is(failed.err, errTest) || trainer.HasState() || trainer.Progress().Step != 2 {
		t.Errorf("failed: %v, state %t, %+v", failed.err, trainer.HasState(), trainer.Progress())
	}
}

// torn is a device that fails in a wait after an update was queued: for the norm, or for the lanes'
// states.
type torn struct {
	compute.Device
	where string
	reads *int // reads at where before it fails
}

func (d torn) read(where string) {
	if where != d.where {
		return
	}
	if *d.reads--; *d.reads < 0 {
		panic(&compute.DeviceError{Device: "cpu", Doing: "reading", Err: errTest})
	}
}

func (d torn) NewClipper() compute.Clipper { return tornClipper{d.Device.NewClipper(), d} }

func (d torn) Zero(x []float32) { d.read("zero"); d.Device.Zero(x) }

type tornClipper struct {
	compute.Clipper
	d torn
}

func (c tornClipper) Norm() float64 { c.d.read("norm"); return c.Clipper.Norm() }

// tornState is a seat that fails when the lanes' states are read.
type tornState struct {
	Seat
	d torn
}

func (s tornState) State(dst []float32) error { s.d.read("state"); return s.Seat.State(dst) }

// A device that fails after an update, with or without a ring, leaves no state: the parameters do
// not match the progress. One that fails before the update leaves the state.
func TestFailureBehindUpdate(t *testing.T) {
	for _, c := range []struct {
		where   string
		ring    sumRing // nil: it updates in its run
		records bool
		loss    fault
		keeps   bool
	}{
		{"norm", nil, true, healthy, false},
		{"state", nil, true, healthy, false},
		{"zero", nil, true, lossNaN, false},
		{"norm", ringOfOne{}, true, healthy, false},
		{"state", ringOfOne{}, true, healthy, true},
		{"norm", nil, false, healthy, false},
		{"state", nil, false, healthy, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			reads := 1 << 20
			j := newJob(1)
			j.config.Steps, j.config.HostMemory, j.model.GradientTail = 9, false, 0
			var d torn
			j.device = func(_ int, dev compute.Device) compute.Device {
				d = torn{&faulty{dev, func(run int) fault {
					if run == 2 {
						return c.loss
					}
					return healthy
				}}, c.where, &reads}
				recorder := devicetest.NewRecorder(d)
				if c.records {
					return recorder
				}
				return recorder.Stager
			}
			var trainer *Trainer
			j.prepare = func(_ int, made *Trainer) {
				trainer = made
				trainer.seat.(*textSeat).task.ledger = beforeStep{3, func() { reads = 0 }}
				trainer.seat = tornState{trainer.seat, d}
			}
			err := func() (err error) {
				defer compute.Catch(&err)
				return j.runRank(t.Context(), 0, c.ring, &outcome{})
			}()
			if !errors.Is(err, errTest) || trainer.HasState() != c.keeps ||
				trainer.Progress().Step != 2 {
				t.Errorf("%v, state %t, %+v", err, trainer.HasState(), trainer.Progress())
			}
		})
	}
}

// heldJob is a short Adam job that holds the second moment after step 4.
func heldJob(t *testing.T, ranks int) job {
	t.Helper()
	j := newJob(ranks)
	j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 1e-3
	j.config.Clip.Scope = optim.ScopeWorker
	j.config.Steps, j.config.SaveEvery, j.config.Save = 8, 4, true
	summing(t, &j, compress.Config{})
	j.update.HoldAfter = 4
	return j
}

// Adam's second moment is held after its last step if the ranks sum gradients. In rounds each rank
// updates by its own gradient, so the second moment goes on.
func TestSecondMomentIsHeld(t *testing.T) {
	for name, c := range map[string]struct {
		local optim.Local
		held  int64
	}{
		"steps":  {optim.Local{}, 4},
		"rounds": {optim.Local{Every: 2, Outer: optim.OuterAverage}, 0},
	} {
		j := heldJob(t, 2)
		j.config.Local = c.local
		saved := j.mustRun(t).saved
		first := func(n int) []float32 { return saved[n].Slots[0].Data }
		second := func(n int) []float32 { return saved[n].Slots[1].Data }
		if held := sameBits(second(0), second(1)); held != (c.held > 0) {
			t.Errorf("%s: the second moment is held: %t", name, held)
		}
		if got := saved[1].Progress.Held; got != c.held {
			t.Errorf("%s: it is of %d updates, not %d", name, got, c.held)
		}
		if sameBits(first(0), first(1)) {
			t.Errorf("%s: the first moment is held", name)
		}
	}
}

// A held second moment stays held, with the same number of updates, when a rank goes on alone and
// when the job is extended. One that a single rank began is held with all its updates.
func TestSecondMomentStaysHeld(t *testing.T) {
	for name, c := range map[string]struct {
		before, after int
		held, stays   int64
	}{
		"two, then one": {2, 1, 4, 4},
		"two, then two": {2, 2, 4, 4},
		"one, then two": {1, 2, 0, 8},
	} {
		run := func(j job, workers int, from *Snapshot) *Snapshot {
			e := newElastic(t, j, workers)
			e.restore = func(context.Context, agree.Reason, int64) (*Snapshot, error) {
				return from, nil
			}
			all := []int{0, 1}[:workers]
			e.ring(breakage{}, all...)
			e.allDone(all...)
			return e.workers[0].saved[len(e.workers[0].saved)-1]
		}
		snapshot := run(heldJob(t, 1), c.before, nil)
		then := heldJob(t, 1)
		then.config.Steps = 16
		if c.held > 0 {
			then.update.HoldAfter = 12
		}
		end := run(then, c.after, snapshot)
		if got := snapshot.Progress.Held; got != c.held {
			t.Errorf("%s: it was of %d updates, not %d", name, got, c.held)
		}
		if got := end.Progress.Held; got != c.stays || end.Progress.Updates != 16 {
			t.Errorf("%s: it is of %d updates of %d, not %d", name, got, end.Progress.Updates,
				c.stays)
		}
		if !sameBits(end.Slots[1].Data, snapshot.Slots[1].Data) {
			t.Errorf("%s: the second moment has changed", name)
		}
		if sameBits(end.Slots[0].Data, snapshot.Slots[0].Data) {
			t.Errorf("%s: the first moment has not", name)
		}
	}
}
