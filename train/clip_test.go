package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"rondo/compute/cpu"
	"rondo/model"
	"rondo/train/optim"
)

// One step of plain SGD with clipping by worker equals the formula: each worker's mean gradient,
// clipped, weighted by its share of the targets, and summed.
func TestWorkerClipAsWritten(t *testing.T) {
	ends := []int{1, 3, testG}
	for _, clip := range []optim.Clip{
		byNorm(0.05, optim.ScopeWorker), byValue(0.003, optim.ScopeWorker),
	} {
		t.Run(fmt.Sprint(clip.By), func(t *testing.T) {
			j := newJob(3)
			j.ends, j.config.Clip, j.config.Steps = ends, clip, 1
			j.config.Schedule.Rate = 1
			o := j.mustRun(t)
			params, norm := byHand(t, j)
			if got := o.steps[0].GradientNorm; math.Abs(got/norm-1) > 1e-6 {
				t.Errorf("the norm is %v, by elasticWorker %v", got, norm)
			}
			for i, want := range params {
				if math.Abs(float64(o.params[i])-want) > 1e-7 {
					t.Fatalf("parameter %d is %v, by elasticWorker %v", i, o.params[i], want)
				}
			}
		})
	}
}

// fresh returns the job's model with initial weights, on a CPU, until the test ends.
func (j job) fresh(t *testing.T) *model.Model {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	m, err := model.New(j.model, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// byHand computes the parameters after a job's first step, and the weighted mean of the norms.
func byHand(t *testing.T, j job) (params []float64, norm float64) {
	t.Helper()
	m := j.fresh(t)
	for _, p := range m.Params() {
		params = append(params, float64(p))
	}
	first := 0
	for _, end := range j.ends {
		count := end - first
		g := gradientOf(t, m, j.batches, first, count)
		sum := 0.0
		for _, v := range g {
			sum += v * v
		}
		share := float64(count) / testG
		norm += share * math.Sqrt(sum)
		limit := j.config.Clip.Limit
		clipped := 0
		for i, v := range g {
			if j.config.Clip.By == optim.ByValue {
				if math.Abs(v) > limit {
					v, clipped = math.Copysign(limit, v), clipped+1
				}
			} else if math.Sqrt(sum) > limit {
				v, clipped = v*limit/math.Sqrt(sum), clipped+1
			}
			params[i] -= share * v
		}
		if clipped == 0 {
			t.Errorf("lanes %d to %d: nothing to clip", first, end)
		}
		first = end
	}
	return params, norm
}

// gradientOf returns the mean gradient of the first step's lanes [first, first+count).
func gradientOf(t *testing.T, m *model.Model, batches Batches, first, count int) []float64 {
	t.Helper()
	s, err := m.NewSegment(testT, count)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	inputs, targets := make([]int32, testT*count), make([]int32, testT*count)
	if err := batches.Fill(context.Background(), 0, first, count, inputs, targets); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(model.SegmentInput{Inputs: inputs, Targets: targets,
		Scale: 1 / float32(testT*count)}); err != nil {
		t.Fatal(err)
	}
	g := make([]float64, 0, len(m.Gradients()))
	for _, v := range slices.Clone(m.Gradients()) {
		g = append(g, float64(v))
	}
	return g
}

func TestFinite(t *testing.T) {
	if n := math.Inf(1); !isFinite(1) || isFinite(n) || isFinite(-n) || isFinite(math.NaN()) {
		t.Error("isFinite is wrong")
	}
	nan := float32(math.NaN())
	inf := float32(math.Inf(1))
	if !allFinite([]float32{0, -1, math.MaxFloat32}) || allFinite([]float32{0, -inf}) ||
		allFinite([]float32{nan, 1}) {
		t.Error("allFinite is wrong")
	}
}
