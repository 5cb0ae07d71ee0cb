package train

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/train/optim"
)

func TestValidationMeasure(t *testing.T) {
	var v Validation
	for i, c := range []struct {
		loss    float64
		due     bool
		best    bool
		waiting int64
	}{
		{math.NaN(), true, false, 1}, {3, true, true, 0}, {3, true, false, 1},
		{math.NaN(), true, false, 2}, {2, false, false, 2}, {2.5, true, true, 0},
		{math.Inf(1), true, false, 1}, {2.4, true, true, 0},
	} {
		step := int64(i + 1)
		if best := v.measure(EvalReport{Step: step, Loss: c.loss}, c.due); best != c.best ||
			v.Waiting != c.waiting {
			t.Errorf("loss %v, due %v: best %v, %+v", c.loss, c.due, best, v)
		}
	}
	want := Validation{Step: 8, Loss: 2.4, BestStep: 8, Best: 2.4}
	if v != want || !v.valid(8) || v.valid(7) {
		t.Errorf("%+v, want %+v", v, want)
	}
}

// The evaluation at the job's end counts for Lowest if it is the best.
func TestLowest(t *testing.T) {
	for _, c := range []struct {
		v    Validation
		step int64
		loss float64
	}{
		{Validation{}, 0, 0},
		{Validation{Step: 9, Loss: 2}, 9, 2},
		{Validation{Step: 9, Loss: 2, BestStep: 4, Best: 1.5}, 4, 1.5},
		{Validation{Step: 9, Loss: 2, BestStep: 4, Best: 2}, 4, 2},
		{Validation{Step: 9, Loss: 1.25, BestStep: 4, Best: 1.5}, 9, 1.25},
	} {
		if step, loss := c.v.Lowest(); step != c.step || loss != c.loss {
			t.Errorf("%+v: step %d, loss %v", c.v, step, loss)
		}
	}
}

// stale is a job whose parameters do not change, so no evaluation improves on the first.
func stale(ranks int) job {
	j := newJob(ranks)
	j.config.Schedule.Rate = 1e-30
	j.evaluation, j.config.EvalEvery = newEvaluation(60), 4
	j.config.EarlyStop, j.config.Save, j.config.SaveBest = 3, true, true
	j.config.Sample = func(_ context.Context, step int64) (string, error) {
		return "text", nil
	}
	return j
}

// savedSteps returns the snapshots' steps.
func (s *memorySaver) savedSteps() (all []int64) {
	for _, snap := range s.saved {
		all = append(all, snap.Progress.Step)
	}
	return all
}

// All ranks end after the same evaluation, with the final snapshot and sample.
func TestEarlyStop(t *testing.T) {
	ways := map[string]func(*job){
		"each step": func(*job) {},
		"rounds": func(j *job) {
			j.config.Clip.Scope = optim.ScopeWorker
			j.config.Local = optim.Local{Every: 2, Outer: optim.OuterAverage}
		},
		"shards": func(j *job) { j.shardCopies = 1 },
	}
	for name, way := range ways {
		for ranks := 1; ranks <= 3; ranks++ {
			j := stale(ranks)
			way(&j)
			for rank, o := range j.run(t) {
				if o.err != nil || !o.result.Early || o.result.Stopped ||
					o.result.Progress.Step != 16 || len(o.evals) != 4 {
					t.Fatalf("%s, rank %d of %d: %+v, %v", name, rank, ranks, o.result, o.err)
				}
				if rank == 0 && (!slices.Equal(o.savedSteps(), []int64{4, 16}) ||
					!slices.Equal(o.samples, []string{"16 text"})) {
					t.Errorf("%s: saved after %v, samples %q", name, o.savedSteps(), o.samples)
				}
			}
		}
	}
}

// A resumed job remembers how long it has waited. A job that ended early goes on only if it may
// wait longer.
func TestEarlyStopIsResumed(t *testing.T) {
	j := stale(2)
	straight := j.mustRun(t)
	first := j
	first.prepare = func(_ int, trainer *Trainer) {
		trainer.cfg.Observer = &stopper{Observer: trainer.cfg.Observer, trainer: trainer, after: 9}
	}
	half := first.mustRun(t)
	if step := half.result.Progress.Step; !half.result.Stopped || step != 10 {
		t.Fatalf("stopped after step %d", step)
	}
	second := j
	second.reload = func(trainer *Trainer) *Snapshot {
		return reload(t, trainer, half.saved[len(half.saved)-1])
	}
	rest := second.mustRun(t)
	if !rest.result.Early {
		t.Errorf("%+v", rest.result)
	}
	sameSnapshot(t, rest.saved[len(rest.saved)-1], straight.saved[1])

	for limit, want := range map[int64]int64{3: 16, 5: 24, 0: 50} {
		again := j
		again.config.EarlyStop = limit
		again.reload = func(trainer *Trainer) *Snapshot {
			return reload(t, trainer, straight.saved[1])
		}
		if r := again.mustRun(t).result; r.Progress.Step != want || r.Early != (limit > 0) {
			t.Errorf("--early-stop %d: ended after step %d, early %v", limit, r.Progress.Step,
				r.Early)
		}
	}
}

// Losses on another text are not compared: the best and the count start anew.
func TestAnotherTextIsNotCompared(t *testing.T) {
	j := stale(2)
	j.evalData, j.config.Schedule.Kind = 7, optim.OnPlateau
	j.config.Schedule.Decay, j.config.Schedule.Patience = 0.5, 1
	ended := j.mustRun(t)
	last := ended.saved[len(ended.saved)-1]
	if v := last.Progress.Validation; v.Text != 7 || v.Waiting != 3 || v.BestStep != 4 {
		t.Fatalf("%+v", v)
	}
	for text, want := range map[int64]int64{7: 16, 0: 16, 8: 32} {
		again := j
		again.evalData = text
		again.reload = func(trainer *Trainer) *Snapshot { return reload(t, trainer, last) }
		o := again.mustRun(t)
		p := o.result.Progress
		if !o.result.Early || p.Step != want {
			t.Errorf("text %d: ended after step %d: %+v", text, p.Step, p.Validation)
		}
		if v := p.Validation; text == 8 && (v.Text != 8 || v.BestStep != 20 || v.Waiting != 3) {
			t.Errorf("another text: %+v", v)
		}
		if p.Plateau.Reductions < last.Progress.Plateau.Reductions {
			t.Errorf("text %d: the learning rate went up: %+v", text, p.Plateau)
		}
	}
	old := last.Progress
	old.Validation.Text = 0 // as in an older version's checkpoint
	old.startEvaluations(8)
	if old.Validation.Waiting != 3 || old.Validation.BestStep != 4 {
		t.Errorf("a text that is not known: %+v", old.Validation)
	}
}

// Each evaluation that is the best so far is followed by a snapshot, and so is the job's end. Each
// snapshot says what was measured.
func TestBestIsSaved(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		j := newJob(ranks)
		j.config.Optimizer.Rule, j.config.Schedule.Rate = compute.Adam, 0.3
		j.evaluation, j.config.EvalEvery = newEvaluation(60), 3
		j.config.Save, j.config.SaveBest, j.config.CheckEvery = true, true, 7
		o := j.mustRun(t)
		least, worse := math.Inf(1), 0
		var want []int64
		loss := map[int64]float64{}
		for _, e := range o.evals {
			loss[e.Step] = e.Loss
			if e.Loss < least && e.Step%3 == 0 {
				least, want = e.Loss, append(want, e.Step)
			} else {
				worse++
			}
		}
		if want = append(want, 50); worse < 2 || !slices.Equal(o.savedSteps(), want) {
			t.Errorf("%d ranks: saved after %v, want %v of %v", ranks, o.savedSteps(), want,
				o.evals)
		}
		for _, s := range o.saved {
			v, step := s.Progress.Validation, s.Progress.Step
			if v.Step != step || v.Loss != loss[step] || step < 50 && v.Best != v.Loss {
				t.Errorf("the snapshot of step %d has %+v", step, v)
			}
		}
		j.config.SaveBest = false
		if o := j.mustRun(t); !slices.Equal(o.savedSteps(), []int64{50}) {
			t.Errorf("saved after %v without SaveBest", o.savedSteps())
		}
	}
}

// Progress from before jobs remembered evaluations loads without any.
func TestProgressWithoutValidation(t *testing.T) {
	var p Progress
	err := json.Unmarshal([]byte(`{"step":4,"epoch":1,"updates":4,"loss":2,"epoch_loss_sum":9,`+
		`"epoch_steps":4,"nonfinite_steps":0,"nonfinite_in_row":0,"plateau":{"seen":true,`+
		`"best":2,"waiting":1,"reductions":0}}`), &p)
	if err != nil || p.validate(9) != nil || p.Validation != (Validation{}) {
		t.Errorf("%+v: %v, %v", p, err, p.validate(9))
	}
	p.Validation.BestStep = 5
	if p.validate(9) == nil {
		t.Error("a best evaluation after the last step was taken")
	}
}

func TestEarlyStopNeedsEvaluations(t *testing.T) {
	for _, change := range []func(*job){
		func(j *job) { j.evaluation = nil }, func(j *job) { j.config.EarlyStop = -1 },
	} {
		j := stale(1)
		change(&j)
		if o := j.run(t)[0]; o.err == nil {
			t.Errorf("--early-stop %d was taken, evaluation %v", j.config.EarlyStop,
				j.evaluation)
		}
	}
}
