package job

import (
	"fmt"
	"testing"

	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/train"
)

// memorySpec is a job of one worker.
func memorySpec(change func(*rondov1.JobSpec)) *rondov1.JobSpec {
	spec := jobspec.Textbook()
	spec.Device = "cpu"
	spec.Workers, spec.Batch, spec.Hidden, spec.Bptt, spec.Threads = 1, 16, 96, 12, 2
	spec.SampleTokens = 0 // the segment alone
	change(spec)
	return spec
}

// TestMemoryAgainstTheDevice holds the formulas against what a device counts when a segment of
// that shape has run: never less, and at most a sixth and a few blocks more.
func TestMemoryAgainstTheDevice(t *testing.T) {
	type change = func(*rondov1.JobSpec)
	for name, c := range map[string]struct {
		vocabulary int
		change     change
	}{
		"char":       {60, func(s *rondov1.JobSpec) {}},
		"two layers": {60, func(s *rondov1.JobSpec) { s.Layers, s.Hidden = 2, 160 }},
		"wide":       {60, func(s *rondov1.JobSpec) { s.Layers, s.Hidden = 2, 512 }},
		"odd":        {77, func(s *rondov1.JobSpec) { s.Batch, s.Hidden, s.Bptt = 7, 45, 9 }},
		"gru":        {60, func(s *rondov1.JobSpec) { s.Cell, s.Layers = "gru", 2 }},
		"gru before": {60, func(s *rondov1.JobSpec) { s.Cell, s.Layers = "gru-reset-before", 2 }},
		"rnn":        {60, func(s *rondov1.JobSpec) { s.Cell, s.Hidden = "rnn", 300 }},
		"embedding":  {900, func(s *rondov1.JobSpec) { s.Embed = 128 }},
		"tied": {3000, func(s *rondov1.JobSpec) {
			s.Embed, s.TieWeights, s.Layers = 64, true, 2
		}},
		"norm": {60, func(s *rondov1.JobSpec) { s.Layers, s.Hidden, s.LayerNorm = 2, 160, true }},
		"skip": {60, func(s *rondov1.JobSpec) {
			s.Layers, s.LayerNorm, s.SkipConnections, s.DropoutLocked = 3, true, true, true
		}},
		"deep": {60, func(s *rondov1.JobSpec) {
			s.Layers, s.Embed, s.DeepInput, s.DeepTransition, s.DeepOutput = 2, 64, 1, 2, 1
		}},
		"large vocabulary": {80000, func(s *rondov1.JobSpec) {
			s.Embed, s.Batch, s.Bptt = 64, 32, 35
		}},
		"logits in chunks": {20000, func(s *rondov1.JobSpec) {
			s.Embed, s.Batch, s.Bptt = 64, 64, 35
		}},
		"long":             {60, func(s *rondov1.JobSpec) { s.Bptt = 700 }},
		"recompute":        {60, func(s *rondov1.JobSpec) { s.Bptt, s.Recompute = 700, 64 }},
		"recompute evenly": {60, func(s *rondov1.JobSpec) { s.Bptt, s.Recompute = 640, 64 }},
	} {
		for _, precision := range []string{"fp32", "bf16"} {
			t.Run(name+" "+precision, func(t *testing.T) {
				spec := memorySpec(c.change)
				spec.Precision = precision
				estimate, err := Memory(spec, Extent{Tokens: c.vocabulary}, 1)
				if err != nil {
					t.Fatal(err)
				}
				got := measured(t, spec, c.vocabulary)
				want := estimate.Model + estimate.Work
				if got > want || want > got*7/6+16<<20 {
					t.Errorf("%s, and the device held %s (a run); off by %.2f", mib(want), mib(got),
						float64(want)/float64(got))
				}
				t.Logf("%s estimated (%+v), %s held", mib(want), estimate, mib(got))
			})
		}
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// measured is what a device holds at most that runs a segment of the job with plain SGD.
func measured(t *testing.T, spec *rondov1.JobSpec, vocabulary int) int64 {
	t.Helper()
	config, err := ModelConfig(spec, vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	config.GradientTail = train.Tail
	device, err := OpenDevice(spec, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	m, err := model.New(config, device)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	T, B := int(spec.Bptt), int(spec.Batch)
	segment, err := m.NewSegment(T, B)
	if err != nil {
		t.Fatal(err)
	}
	defer segment.Close()
	ids := make([]int32, T*B)
	for i := range ids {
		ids[i] = int32(i % vocabulary)
	}
	if _, err := segment.Run(model.SegmentInput{Inputs: ids, Targets: ids, Scale: 1}); err != nil {
		t.Fatal(err)
	}
	_, peak := device.(interface{ Bytes() (now, peak int64) }).Bytes()
	return peak
}

// TestAssumedExtent: the memory of a job of each task can be estimated without its data.
func TestAssumedExtent(t *testing.T) {
	for _, name := range task.Names() {
		spec, tokens := jobspec.Textbook(), 100_000
		spec.Task, spec.Embed, spec.Device = name, 32, "cpu"
		if task.SquaredError(name) { // rows of numbers
			spec.Embed, tokens = 0, 256
		}
		if _, err := Memory(spec, Assume(spec, tokens), 2); err != nil {
			t.Errorf("--task %s: %v", name, err)
		}
	}
}

// TestMemoryOfSamples: the samples of a language model that reads in both directions need a pass.
func TestMemoryOfSamples(t *testing.T) {
	work := func(task string, tokens int64) int64 {
		e, err := Memory(memorySpec(func(s *rondov1.JobSpec) {
			s.Task, s.Bidirectional, s.IKnow, s.SampleTokens = task, true, task == "lm", tokens
		}), Extent{Tokens: 60}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return e.Work
	}
	if with, without := work("lm", 8), work("lm", 0); with <= without {
		t.Errorf("%d bytes with samples, %d without", with, without)
	}
	if with, without := work("fill", 8), work("fill", 0); with != without {
		t.Errorf("fill writes no samples: %d bytes with them, %d without", with, without)
	}
}
