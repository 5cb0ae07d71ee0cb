package train

import (
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/train/optim"
)

// One wrong bit anywhere changes a digest within 34 steps, or rounds, and nothing else does.
func TestDigestReadsAllParameters(t *testing.T) {
	digestReadsAll(t, optim.Local{})
	digestReadsAll(t, optim.Local{Every: 55, Outer: optim.OuterAverage})
}

func digestReadsAll(t *testing.T, local optim.Local) {
	t.Helper()
	const units = 34 // see package audit
	alone := func(t *testing.T, change func(params []float32)) (digests [units]uint64, n int) {
		j := inRounds(textbook(), local)
		j.config.Steps = units * max(1, local.Every)
		j.prepare = func(_ int, trainer *Trainer) {
			n = len(trainer.task.Params())
			change(trainer.task.Params())
			for i := range digests {
				digests[i] = trainer.Digest()
				trainer.commit(trainer.unit.end(trainer.progress.Step), 1, false, tally{})
			}
			trainer.pending = false // there is nothing to train
		}
		var o outcome
		if err := j.runRank(t.Context(), 0, nil, &o); err != nil {
			t.Fatal(err)
		}
		return digests, n
	}
	want, n := alone(t, func([]float32) {})
	if again, _ := alone(t, func([]float32) {}); again != want {
		t.Error("the same parameters have other digests")
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, at := range []int{0, n / 2, n - 1, random.IntN(n), random.IntN(n), random.IntN(n)} {
		got, _ := alone(t, func(params []float32) {
			params[at] = math.Float32frombits(math.Float32bits(params[at]) ^ 1)
		})
		if got == want {
			t.Errorf("%+v: a bit of parameter %d of %d is in no digest", local, at, n)
		}
	}
}

// A checkpoint has the digest that was committed at its step, in memory of a device's own too.
func TestSnapshotsHaveTheDigestOfTheirStep(t *testing.T) {
	for _, host := range []bool{true, false} {
		j := elasticJob(8)
		j.config.Save, j.config.SaveEvery = true, 3
		j.config.Optimizer.Rule, j.config.HostMemory = compute.Adam, host
		if !host {
			j.model.GradientTail = 0
		}
		e := newElastic(t, j, 2)
		e.ring(breakage{}, 0, 1)
		e.allDone(0, 1)
		e.audit()
		h := e.workers[0]
		if len(h.saved) != 3 || len(h.commits) != 8 || h.commits[0].Digest == h.commits[1].Digest {
			t.Fatalf("%d snapshots, commits %v", len(h.saved), h.commits)
		}
		for _, s := range h.saved {
			if c := h.commits[s.Progress.Step-1]; c.Digest != s.Digest {
				t.Errorf("the snapshot of step %d has digest %x; committed was %x",
					s.Progress.Step, s.Digest, c.Digest)
			}
		}
	}
}

// A snapshot's digest is of the copy that is saved, so that a wrong copy has another one than its
// step's commit.
func TestSnapshotsHaveTheDigestOfTheirCopy(t *testing.T) {
	var dev *wrongCopy
	j := newJob(1)
	j.config.Steps, j.config.HostMemory, j.model.GradientTail = 1, false, 0
	j.device = func(_ int, d compute.Device) compute.Device {
		dev = &wrongCopy{Device: d}
		return dev
	}
	j.prepare = func(_ int, trainer *Trainer) {
		for _, wrong := range []bool{false, true} {
			s, err := trainer.snapshot(trainer.progress)
			if err != nil {
				t.Fatal(err)
			}
			if (s.Digest != trainer.Digest()) != wrong {
				t.Errorf("the copy is wrong: %t, its digest %x, its step's %x", wrong, s.Digest,
					trainer.Digest())
			}
			dev.copied = s.Params
		}
	}
	j.mustRun(t)
}

// wrongCopy is a device that downloads one bit wrong, to one place.
type wrongCopy struct {
	compute.Device
	copied []float32
}

func (d *wrongCopy) Download(dst, src []float32) {
	d.Device.Download(dst, src)
	if d.copied != nil && &dst[0] == &d.copied[0] {
		dst[0] = math.Float32frombits(math.Float32bits(dst[0]) ^ 1)
	}
}
