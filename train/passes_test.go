package train

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
	"rondo/model"
	"rondo/train/optim"
)

// accumulated is a job on one rank whose steps have several segments. An epoch is 9 segments.
func accumulated(segments int) job {
	j := newJob(1)
	j.config.Accumulate, j.config.Steps = segments, 12
	return j
}

// naive runs a job's steps by hand: it sums the segments' gradients at the same parameters in
// float64, and updates at the constant rate. It returns the parameters.
func naive(t *testing.T, j job) []float32 {
	t.Helper()
	m := j.fresh(t)
	segment, err := m.NewSegment(testT, testG)
	if err != nil {
		t.Fatal(err)
	}
	defer segment.Close()
	each := int64(j.config.Accumulate)
	inputs, targets := make([]int32, testT*testG), make([]int32, testT*testG)
	lanes := make([]int, testG)
	for i := range lanes {
		lanes[i] = i
	}
	for step := range j.config.Steps {
		sum := make([]float64, len(m.Params()))
		for at := step * each; at < (step+1)*each; at++ {
			if err := j.batches.Fill(t.Context(), at, 0, testG, inputs, targets); err != nil {
				t.Fatal(err)
			}
			if j.batches.Reset(at) {
				segment.ZeroState()
			}
			if _, err := segment.Run(model.SegmentInput{Inputs: inputs, Targets: targets,
				Scale: 1, Step: at, Lanes: lanes}); err != nil {
				t.Fatal(err)
			}
			for i, g := range m.Gradients() {
				sum[i] += float64(g)
			}
		}
		for i, g := range sum {
			mean := g / float64(each*testG*testT)
			m.Params()[i] = float32(float64(m.Params()[i]) - j.config.Schedule.Rate*mean)
		}
	}
	return slices.Clone(m.Params())
}

// A step of several segments updates by the mean of their gradients. Each gradient uses the same
// parameters, the state left by the previous segment, and its own dropout masks.
func TestAccumulate(t *testing.T) {
	for _, segments := range []int{1, 2, 4, 9, 20} {
		for _, random := range []bool{false, true} {
			j := accumulated(segments)
			j.config.Clip.Limit, j.config.Schedule.Rate = 0, 0.5
			j.model.Layers, j.model.Dropout, j.model.Embed = 2, 0.3, 8
			j.batches = newLanes(random)
			want := naive(t, j)
			for _, ranks := range []int{1, 3} {
				j.ranks = ranks
				for i, got := range j.mustRun(t).params {
					if d := math.Abs(float64(got - want[i])); !(d < 1e-5) {
						t.Fatalf("%d segments, random %v, %d ranks: parameter %d is %v, want %v",
							segments, random, ranks, i, got, want[i])
					}
				}
			}
		}
	}
}

// Any number of ranks has the loss curve of one, also if the device has its own memory or records.
func TestAccumulateParity(t *testing.T) {
	for _, segments := range []int{2, 4} {
		want := accumulated(segments).mustRun(t)
		for _, ranks := range []int{1, 2, 5} {
			for kind, change := range map[string]func(*job){
				"host": func(*job) {},
				"device": func(j *job) {
					j.config.HostMemory, j.model.GradientTail = false, 0
				},
				"recorder": func(j *job) {
					j.config.HostMemory, j.model.GradientTail = false, 0
					j.device = func(_ int, dev compute.Device) compute.Device {
						return devicetest.NewRecorder(dev)
					}
				},
			} {
				j := accumulated(segments)
				j.ranks = ranks
				change(&j)
				got := j.mustRun(t).losses()
				for i, loss := range want.losses() {
					if math.Abs(got[i]-loss) > 1e-5 {
						t.Fatalf("%d segments, %s, %d ranks, step %d: a loss of %v, and %v on one",
							segments, kind, ranks, i+1, got[i], loss)
					}
				}
			}
		}
	}
}

// An epoch ends in the step that reads its last segment. A step belongs to the epoch in which it
// begins.
func TestAccumulateEpochs(t *testing.T) {
	j := accumulated(4) // steps end after 4, 8, 12, 16, 20, 24, 28, 32, 36 segments
	j.evaluation = newEvaluation(60)
	o := j.mustRun(t)
	var epochs, evals []int64
	for _, s := range o.steps {
		epochs = append(epochs, s.Epoch)
	}
	for _, e := range o.evals {
		evals = append(evals, e.Step)
	}
	if want := []int64{1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5}; !slices.Equal(epochs, want) {
		t.Errorf("steps of the epochs %v, want %v", epochs, want)
	}
	if want := []int64{3, 5, 7, 9, 12}; !slices.Equal(evals, want) {
		t.Errorf("evaluated after the steps %v, want %v", evals, want)
	}
}

// If a worker is killed in any collective, each segment is still read exactly once.
func TestAccumulateKilled(t *testing.T) {
	j := elasticJob(6)
	j.config.Accumulate = 4
	oracle := j.mustRun(t)
	for i, how := range []breakage{{dead: []int{1}}, {dead: []int{2}, carried: true},
		{dead: []int{0}, completes: []int{1}}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for how.call = 1; ; how.call++ {
				e := newElastic(t, j, 3)
				if !e.ring(how, 0, 1, 2) {
					break
				}
				left := slices.DeleteFunc([]int{0, 1, 2}, func(worker int) bool {
					return slices.Contains(how.dead, worker)
				})
				e.ring(breakage{}, left...)
				e.allDone(left...)
				e.audit()
				e.matches(left[0], oracle)
			}
			if how.call < 15 {
				t.Errorf("only %d collectives", how.call)
			}
		})
	}
}

// A fault in any phase of any pass, with segments and lane groups, loses no sample and no state.
func TestPassesRehearsed(t *testing.T) {
	j := elasticJob(4)
	j.evaluation = nil
	j.config.Accumulate, j.config.LaneGroups = 2, testG
	j.config.Clip.Scope = optim.ScopeGroup
	e := newElastic(t, j, 2)
	r := &rehearsed{}
	e.workers[0].trainer.cfg.Rehearsal = r
	e.ring(breakage{}, 0, 1)
	e.allDone(0, 1)
	want := "load 1,forward 1,backward 1"
	passes := e.workers[0].trainer.passes()
	for n := 2; n <= passes; n++ {
		for _, phase := range []string{"load", "forward", "backward"} {
			want += fmt.Sprintf(",%s (pass %d) 1", phase, n)
		}
	}
	if got := strings.Join(r.heard, ","); passes < 4 || !strings.HasPrefix(got, want+",update 1") {
		t.Errorf("of %d passes: %s", passes, got)
	}
	for _, place := range []string{"load (pass 2) 3", "forward (pass 3) 2", "backward (pass 4) 3"} {
		e := newElastic(t, j, 2)
		e.workers[1].trainer.cfg.Rehearsal = failsAt(place)
		e.ring(breakage{}, 0, 1)
		if err := e.workers[1].err; !errors.Is(err, errTest) ||
			!strings.Contains(err.Error(), " of pass ") {
			t.Errorf("%s: %v", place, err)
		}
		e.workers[1].trainer.cfg.Rehearsal = nil
		e.ring(breakage{}, 1, 0)
		if lost := e.workers[0].joined.LostLanes; len(lost) > 0 {
			t.Errorf("%s: the lanes %v were lost", place, lost)
		}
		e.allDone(1, 0)
		e.audit()
	}
}

// A job that resumes from a snapshot of any step equals one that was never stopped.
func TestAccumulateResume(t *testing.T) {
	j := accumulated(4)
	j.model.Layers, j.model.Dropout = 2, 0.3
	j.config.Save, j.config.SaveEvery = true, 1
	straight := j.mustRun(t)
	for _, saved := range straight.saved[:11] {
		resumed := j
		resumed.reload = func(trainer *Trainer) *Snapshot { return reload(t, trainer, saved) }
		o := resumed.mustRun(t)
		sameSnapshot(t, o.saved[len(o.saved)-1], straight.saved[11])
		if t.Failed() {
			t.Fatalf("from step %d", saved.Progress.Step)
		}
	}
}
