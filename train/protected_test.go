//go:build unix

package train

import (
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
	"rondo/sum/sharded"
	"rondo/train/optim"
)

// ofItsOwn returns devices with their own memory. It faults when the host touches it, and is copied
// asynchronously. Some of them record their work.
func ofItsOwn(t *testing.T) map[string]func(compute.Device) compute.Device {
	const floats = 1 << 20
	return map[string]func(compute.Device) compute.Device{
		"protected": func(dev compute.Device) compute.Device {
			return devicetest.NewProtected(t, dev, floats)
		},
		"stager": func(dev compute.Device) compute.Device {
			s := devicetest.NewStager(devicetest.NewProtected(t, dev, floats))
			t.Cleanup(func() {
				if s.Hosts != 0 {
					t.Errorf("%d pieces of host memory were not given back", s.Hosts)
				}
			})
			return s
		},
		"recorder": func(dev compute.Device) compute.Device {
			r := devicetest.NewRecorder(devicetest.NewProtected(t, dev, floats))
			t.Cleanup(func() {
				if r.Recorded == 0 || r.Open != 0 || r.Hosts != 0 {
					t.Errorf("%d recordings, of which %d are open, and %d pieces of host memory",
						r.Recorded, r.Open, r.Hosts)
				}
			})
			return r
		},
	}
}

// Devices with their own memory give the same bits as devices in host memory: on one rank and on
// two, with clipping before and after the ring, with a skipped step, evaluation and snapshots, and
// after a resume.
func TestDeviceMemoryIsTheDevices(t *testing.T) {
	for _, clip := range []optim.Clip{byNorm(1, optim.ScopeGlobal), byNorm(0.5, optim.ScopeWorker),
		byValue(0.1, optim.ScopeWorker), byNorm(0, optim.ScopeGlobal)} {
		for ranks := 1; ranks <= 2; ranks++ {
			j := resumable(compute.LSTM, false, compute.AdamW)
			j.ranks, j.config.Clip, j.config.Steps, j.config.SaveEvery = ranks, clip, 26, 10
			j.model.Embed, j.model.TieWeights = 8, ranks == 2
			spoil := j.device
			want := j.mustRun(t)
			resumed := j
			resumed.from = want.saved[0]
			wantResumed := resumed.mustRun(t)
			for name, own := range ofItsOwn(t) {
				j := j
				j.config.HostMemory, j.model.GradientTail = false, 0
				j.device = func(rank int, dev compute.Device) compute.Device {
					return own(spoil(rank, dev))
				}
				got := j.mustRun(t)
				if n := len(want.saved); len(got.saved) != n || n != 3 {
					t.Fatalf("%s: %d snapshots, want %d", name, len(got.saved), n)
				}
				for i := range want.saved {
					sameSnapshot(t, got.saved[i], want.saved[i])
				}
				j.from = got.saved[0]
				sameSnapshot(t, j.mustRun(t).saved[1], wantResumed.saved[1])
			}
		}
	}
}

// On such devices too, a newcomer receives the state, and the others go on without a worker that
// leaves.
func TestDeviceMemoryThroughRings(t *testing.T) {
	for name, own := range ofItsOwn(t) {
		t.Run(name, func(t *testing.T) {
			j := elasticJob(9)
			j.model.Layers, j.model.Embed, j.model.Dropout = 2, 8, 0.2
			oracle := j.mustRun(t)
			j.config.HostMemory, j.model.GradientTail = false, 0
			j.device = func(_ int, dev compute.Device) compute.Device { return own(dev) }
			e := newElastic(t, j, 2)
			regroupAt(e, 1, 2)
			e.ring(breakage{}, 0, 1)
			newcomer := e.addWorker()
			regroupAt(e, newcomer, 5)
			e.ring(breakage{}, 0, newcomer, 1)
			e.ring(breakage{call: 3, dead: []int{0}}, newcomer, 1) // this ring breaks
			e.ring(breakage{}, 1)
			e.allDone(1)
			e.audit()
			e.matches(1, oracle)
			e.saves(1)
		})
	}
}

// Sharded optimizers give the same result on such devices, through rings of several ranks and of
// one. Old recordings hold freed slots then, and must not be replayed.
func TestShardsInDeviceMemory(t *testing.T) {
	for name, own := range ofItsOwn(t) {
		for copies := 1; copies <= sharded.MaxCopies; copies++ {
			j := shardJob(compute.AdamW, 3)
			j.model.Layers, j.model.Embed = 2, 8
			want := j.mustRun(t)
			j.config.HostMemory, j.model.GradientTail, j.shardCopies = false, 0, copies
			j.device = func(_ int, dev compute.Device) compute.Device { return own(dev) }
			alikeButForNorms(t, j.mustRun(t), want)

			e := newElastic(t, j, 2)
			regroupAt(e, 0, 1)
			e.ring(breakage{}, 0)
			regroupAt(e, 0, 3)
			e.ring(breakage{}, 0) // with the same lanes
			regroupAt(e, 1, 5)
			e.ring(breakage{}, 0, 1)
			e.ring(breakage{}, 1)
			e.allDone(1)
			e.audit()
			e.matches(1, want)
			sameSlots(t, e.workers[1], want)
			if from := e.from[4]; from != 6 || t.Failed() {
				t.Fatalf("%s, %d copies: rings from %v", name, copies, e.from)
			}
		}
	}
}
