//go:build cuda

package job

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/compute/cuda"
	"rondo/compute/devicetest"
	"rondo/model"
)

// TestDropoutOnGPU holds models with dropout on the GPU against the CPU's, over steps that are
// recorded and replayed with other masks, with gradients that are staged, and in chunks.
func TestDropoutOnGPU(t *testing.T) {
	if !onGPU(t) {
		return
	}
	const T, B = 6, 2
	output := 0.3
	for _, c := range []model.Config{
		{Cell: compute.LSTM, Vocab: 7, Hidden: 16, Layers: 1, Dropout: 0.3, Seed: 7},
		{Cell: compute.GRU, Vocab: 7, Hidden: 16, Layers: 2, Dropout: 0.3, Seed: 7, Embed: 6,
			DropoutInput: 0.2, DropoutLocked: true, LayerNorm: true, Skip: true, Recompute: 4},
		{Cell: compute.LSTM, Vocab: 7, Hidden: 16, Layers: 2, Seed: 7, Embed: 6, Dropout: 0.2,
			DropoutWords: 0.3, WeightDrop: 0.4, DropoutOutput: &output, ActivationL2: 2,
			TemporalL2: 1},
		{Cell: compute.LSTMPeephole, Vocab: 7, Hidden: 16, Layers: 2, Seed: 7, Embed: 6,
			DeepInput: 2, DeepTransition: 1, DeepOutput: 1},
	} {
		t.Run(fmt.Sprint(c.Cell), func(t *testing.T) {
			gpu, err := cuda.New(cuda.Config{Precision: compute.FP32})
			if err != nil {
				t.Fatal(err)
			}
			defer gpu.Close()
			host, err := cpu.New(cpu.Config{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			want, got := newTrained(t, c, host, T, B), newTrained(t, c, gpu, T, B)
			rng := rand.New(rand.NewPCG(1, 2))
			for step := range 5 {
				in := model.SegmentInput{Scale: 1.0 / (T * B), Step: int64(step),
					Lanes: []int{3, 5}}
				for range T * B {
					in.Inputs = append(in.Inputs, int32(rng.IntN(c.Vocab)))
					in.Targets = append(in.Targets, int32(rng.IntN(c.Vocab)))
				}
				compared := devicetest.NewComparison(t,
					devicetest.Bounds{Element: 1e-4, Share: 1e-5})
				compared.Tensor(fmt.Sprint("step ", step), "gradients", got.step(in),
					widened(want.step(in)))
				compared.End()
			}
		})
	}
}

// trained is a model with a segment.
type trained struct {
	t       *testing.T
	dev     compute.Device
	model   *model.Model
	segment *model.Segment
	stage   []float32 // nil where the device does not stage
}

func newTrained(t *testing.T, c model.Config, dev compute.Device, T, B int) *trained {
	m, err := model.New(c, dev)
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSegment(T, B)
	if err != nil {
		t.Fatal(err)
	}
	r := &trained{t: t, dev: dev, model: m, segment: s}
	if stager, ok := dev.(compute.Stager); ok {
		r.stage = stager.AllocHost(len(m.Gradients()))
	}
	return r
}

// step runs a step, wants what is staged to be the gradients, and returns them and the loss.
func (r *trained) step(in model.SegmentInput) []float32 {
	r.t.Helper()
	for i := range r.stage {
		r.stage[i] = float32(math.NaN())
	}
	in.Stage = r.stage
	loss, err := r.segment.Run(in)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, s := range r.segment.Staged() {
		s.Wait()
	}
	all := make([]float32, len(r.model.Gradients()))
	r.dev.Download(all, r.model.Gradients())
	if r.stage != nil {
		devicetest.SameBits(r.t, "what is staged", r.stage, all)
	}
	return append(all, float32(loss))
}

func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// TestLabellerOnGPU holds labellers of two directions on the GPU against the CPU's: gradients that
// are staged, losses and logits, in batches of several lengths.
func TestLabellerOnGPU(t *testing.T) {
	if !onGPU(t) {
		return
	}
	for _, pool := range []model.Pool{model.PoolNone, model.PoolLast, model.PoolMean,
		model.PoolMax, model.PoolPlaces} {
		t.Run(pool.String(), func(t *testing.T) {
			c := model.LabellerConfig{Cell: compute.GRU, Vocab: 7, Embed: 6, Hidden: 16, Layers: 2,
				Bidirectional: true, Dropout: 0.3, DropoutInput: 0.2, Labels: 3, Pool: pool,
				DropoutLocked: pool == model.PoolMax, LayerNorm: pool == model.PoolMean,
				Skip: pool == model.PoolMean, Seed: 7}
			if pool == model.PoolPlaces {
				c.HiddenBackward = 24
				c.Places, c.DeepInput, c.DeepTransition, c.DeepOutput = 2, 1, 1, 1
			}
			rng := rand.New(rand.NewPCG(1, 2))
			batches := make([]model.Examples, 4)
			for i := range batches {
				batches[i] = randomExamples(rng, c, 6-i, 3)
			}
			compareGPU(t, func(on compute.Device) [][]float32 {
				return labelledOn(t, c, on, batches)
			})
		})
	}
}

// compareGPU holds results of a GPU against those of the CPU.
func compareGPU(t *testing.T, run func(compute.Device) [][]float32) {
	t.Helper()
	gpu, err := cuda.New(cuda.Config{Precision: compute.FP32})
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	host, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	want, got := run(host), run(gpu)
	for i := range want {
		compared := devicetest.NewComparison(t, devicetest.Bounds{Element: 1e-4, Share: 1e-5})
		compared.Tensor(fmt.Sprint("result ", i), "values", got[i], widened(want[i]))
		compared.End()
	}
}

// randomExamples draws a batch of up to T tokens in B lanes, one of them empty.
func randomExamples(rng *rand.Rand, c model.LabellerConfig, T, B int) model.Examples {
	in := model.Examples{Steps: T, Scale: 0.5, Step: int64(T),
		Targets: make([]int32, c.Rows(T)*B)}
	for i := range in.Targets {
		in.Targets[i] = int32(rng.IntN(c.Labels))
	}
	for range T * B {
		in.Inputs = append(in.Inputs, int32(rng.IntN(c.Vocab)))
	}
	for b := range B {
		in.Lengths = append(in.Lengths, int32(rng.IntN(T)+1))
		in.Lanes = append(in.Lanes, 3*b)
	}
	in.Lengths[B-1] = 0
	for row := range c.Places * B {
		step := int32(2 * (row / B))
		if step >= in.Lengths[row%B] {
			step = -1
		}
		in.Places = append(in.Places, step)
	}
	return in
}

// backward runs a pass, and returns the gradients and the loss. Staged gradients are those on the
// device.
func backward(
	t *testing.T, dev compute.Device, gradients []float32, staged func() []compute.Staged,
	run func(model.Hooks) (float64, error),
) (results []float32, loss float64) {
	t.Helper()
	var hooks model.Hooks
	if stager, ok := dev.(compute.Stager); ok {
		hooks.Stage = stager.AllocHost(len(gradients))
		defer stager.FreeHost(hooks.Stage)
	}
	loss, err := run(hooks)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range staged() {
		s.Wait()
	}
	results = make([]float32, len(gradients))
	dev.Download(results, gradients)
	if hooks.Stage != nil {
		devicetest.SameBits(t, "what is staged", hooks.Stage, results)
	}
	return results, loss
}

// labelledOn returns each batch's gradients, the losses and, if pooled, the logits.
func labelledOn(
	t *testing.T, c model.LabellerConfig, dev compute.Device, batches []model.Examples,
) (all [][]float32) {
	t.Helper()
	l, err := model.NewLabeller(c, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := l.NewPass(batches[0].Steps, len(batches[0].Lengths))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, in := range batches {
		results, loss := backward(t, dev, l.Gradients(), p.Staged,
			func(h model.Hooks) (float64, error) { return p.Backward(in, h) })
		logits := make([]float32, len(in.Targets)*c.Labels)
		predicted, err := p.Predict(in, logits)
		if err != nil {
			t.Fatal(err)
		}
		if c.Pool != model.PoolNone { // padding's logits mean nothing
			results = append(results, logits...)
		}
		all = append(all, append(results, float32(loss), float32(predicted)))
	}
	return all
}
