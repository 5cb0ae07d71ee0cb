package train

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/train/optim"
)

// dealt returns the ends of the lanes of n ranks with whole groups each.
func (j job) dealt(n int) []int {
	if j.config.LaneGroups == 0 {
		return dealt(n)
	}
	ends := make([]int, n)
	for r := range ends {
		ends[r] = j.config.LaneGroups * (r + 1) / n * (testG / j.config.LaneGroups)
	}
	return ends
}

// leafNodes returns the nodes that cover only leaves in [first, end), and whose parents cover
// others too. It follows the definition, from the node of size leaves at lo downwards.
func leafNodes(lo, size, first, end, leaves int) [][2]int {
	hi := min(lo+size, leaves)
	switch {
	case hi <= first || end <= lo:
		return nil
	case first <= lo && hi <= end:
		return [][2]int{{lo, hi}}
	}
	return append(leafNodes(lo, size/2, first, end, leaves),
		leafNodes(lo+size/2, size/2, first, end, leaves)...)
}

func powerAbove(n int) int {
	size := 1
	for size < n {
		size *= 2
	}
	return size
}

// treeSum returns the sum of the node of size leaves at lo from some known nodes.
func treeSum(lo, size, leaves int, known map[[2]int][]float32) []float32 {
	if sum, ok := known[[2]int{lo, min(lo+size, leaves)}]; ok {
		return slices.Clone(sum)
	}
	left := treeSum(lo, size/2, leaves, known)
	if lo+size/2 < leaves {
		for i, x := range treeSum(lo+size/2, size/2, leaves, known) {
			left[i] += x
		}
	}
	return left
}

func (s localRank) AllReduceTree(ctx context.Context, buf []float32, ends []int, parts [][]float32,
) error {
	s.mu.Lock()
	s.parts[s.rank] = parts
	s.mu.Unlock()
	return s.meet(ctx, s.rank, buf, func() {
		leaves, first := ends[len(ends)-1], 0
		known := map[[2]int][]float32{}
		for rank, end := range ends {
			nodes := leafNodes(0, powerAbove(leaves), first, end, leaves)
			if len(nodes) != len(s.parts[rank]) {
				panic(fmt.Sprintf("rank %d has the nodes %v in %d parts", rank, nodes,
					len(s.parts[rank])))
			}
			for i, n := range nodes {
				known[n] = s.parts[rank][i]
			}
			first = end
		}
		sum := treeSum(0, powerAbove(leaves), leaves, known)
		for _, b := range s.bufs {
			copy(b, sum)
		}
	})
}

func (f *breakingRing) AllReduceTree(
	ctx context.Context, buf []float32, ends []int, parts [][]float32,
) error {
	return f.do(ctx, func(ctx context.Context) error {
		return f.localRank.AllReduceTree(ctx, buf, ends, parts)
	}, func(bool) {
		for _, part := range append(parts, buf) {
			fillNaN(part)
		}
	})
}

// canonical is a job with lane groups on one rank.
func canonical(groups int, scope optim.ClipScope) job {
	j := newJob(1)
	j.config.Canonical, j.config.LaneGroups, j.config.Clip.Scope = true, groups, scope
	j.config.Clip.Limit = 0.1
	j.evaluation, j.config.EvalEvery = newEvaluation(250), 20
	return j
}

// report is a rank's result without times: its parameters and its reports.
func (o *outcome) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%x", sha256.Sum256(fmt.Appendf(nil, "%b", o.params)))
	for _, s := range o.steps {
		s.TokensPerSecond = 0
		fmt.Fprintf(&b, "\n%+v", s)
	}
	return fmt.Sprintf("%s\n%+v\n%+v", b.String(), o.evals, o.result.Progress)
}

// Weights, losses, norms and evaluations have the same bits on any number of ranks and threads, and
// in any memory.
func TestCanonical(t *testing.T) {
	for name, c := range map[string]struct {
		groups int
		change func(*job)
	}{
		"twelve groups": {12, func(*job) {}},
		"six groups":    {6, func(*job) {}},
		"by value": {4, func(j *job) {
			j.config.Clip.By, j.config.Clip.Limit = optim.ByValue, 0.01
		}},
		"accumulated": {12, func(j *job) {
			j.config.Accumulate, j.config.Optimizer.Rule = 4, compute.Adam
			j.config.Schedule.Rate = 0.01
		}},
		"two layers, dropout, embedding, bf16": {6, func(j *job) {
			j.model.Layers, j.model.Dropout, j.model.Embed, j.model.Hidden = 2, 0.3, 8, 40
			j.precision, j.batches = compute.BF16, newLanes(true)
		}},
		"device memory": {12, func(j *job) {
			j.config.HostMemory, j.model.GradientTail = false, 0
		}},
	} {
		for _, scope := range []optim.ClipScope{optim.ScopeGlobal, optim.ScopeGroup} {
			t.Run(fmt.Sprint(name, ", ", scope), func(t *testing.T) {
				t.Parallel()
				j := canonical(c.groups, scope)
				c.change(&j)
				want := j.mustRun(t).report()
				for _, ranks := range []int{1, 2, 3, 4, 8} {
					j.threads, j.ranks = 1+ranks%2, ranks
					if ranks > c.groups {
						continue
					}
					if got := j.mustRun(t).report(); got != want {
						t.Errorf("%d ranks of %d threads: %s\nwant %s", ranks, j.threads, got, want)
					}
				}
			})
		}
	}
}

// Clipping by group gives the same result on any number of ranks, within the rounding of the ring's
// sum.
func TestClipByGroupInARing(t *testing.T) {
	j := canonical(6, optim.ScopeGroup)
	j.config.Canonical, j.config.Steps = false, 20
	want := j.mustRun(t).losses()
	j.ranks = 4
	for step, loss := range j.mustRun(t).losses() {
		if d := loss - want[step]; !(d*d < 1e-8) {
			t.Errorf("step %d: a loss of %v, and %v on one rank", step+1, loss, want[step])
		}
	}
}

// A worker may be killed in any collective: the remaining ones, with more groups each, finish with
// the same bits as an undisturbed job.
func TestCanonicalKilled(t *testing.T) {
	j := elasticJob(6)
	j.config.Canonical, j.config.LaneGroups, j.config.Accumulate = true, 6, 2
	j.config.Clip.Scope, j.config.Clip.Limit = optim.ScopeGroup, 0.1
	oracle := j.mustRun(t)
	for name, how := range map[string]breakage{
		"before": {dead: []int{1}}, "carried": {dead: []int{3}, carried: true},
		"one knows": {dead: []int{0}, completes: []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how.call = 1; ; how.call++ {
				e := newElastic(t, j, 4)
				if !e.ring(how, 0, 1, 2, 3) {
					break
				}
				left := slices.DeleteFunc([]int{0, 1, 2, 3}, func(worker int) bool {
					return slices.Contains(how.dead, worker)
				})
				e.ring(breakage{}, left...)
				e.allDone(left...)
				e.audit()
				h := e.workers[left[0]]
				if !sameBits(h.params(), oracle.params) ||
					h.result.Progress != oracle.result.Progress {
					t.Errorf("call %d: not the bits of an undisturbed job", how.call)
				}
			}
			if how.call < 15 {
				t.Errorf("only %d collectives", how.call)
			}
		})
	}
}

// A job that resumes on another number of ranks ends with the same bits.
func TestCanonicalResume(t *testing.T) {
	j := canonical(12, optim.ScopeGroup)
	j.config.Steps, j.config.Accumulate = 23, 2 // 4.5 steps an epoch
	j.config.Save, j.config.SaveEvery = true, 1
	straight := j.mustRun(t)
	for i, saved := range straight.saved[:22] {
		resumed := j
		resumed.ranks = 1 + i%8
		resumed.reload = func(trainer *Trainer) *Snapshot { return reload(t, trainer, saved) }
		o := resumed.mustRun(t)
		sameSnapshot(t, o.saved[len(o.saved)-1], straight.saved[22])
		if t.Failed() {
			t.Fatalf("from step %d on %d ranks", saved.Progress.Step, resumed.ranks)
		}
	}
}

// A rank's groups are folded into the nodes of the tree and their sums.
func TestFold(t *testing.T) {
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	grads := dev.Alloc(3)
	for leaves := 1; leaves <= 13; leaves++ {
		known := map[[2]int][]float32{}
		for leaf := range leaves {
			known[[2]int{leaf, leaf + 1}] = []float32{rng.Float32(), rng.Float32(), 1}
		}
		f := fold{dev: dev, grads: grads, leaves: leaves}
		for first := range leaves {
			for end := first + 1; end <= leaves; end++ {
				f.begin()
				for leaf := first; leaf < end; leaf++ {
					copy(grads, known[[2]int{leaf, leaf + 1}])
					f.addLeaf(leaf, leaf == end-1)
				}
				want := leafNodes(0, powerAbove(leaves), first, end, leaves)
				if len(want) != len(f.nodes)+1 {
					t.Fatalf("%d..%d of %d leaves: %d nodes, want %v", first, end, leaves,
						len(f.nodes)+1, want)
				}
				for i, n := range want {
					sum := treeSum(n[0], powerAbove(n[1]-n[0]), leaves, known)
					got := grads
					if i < len(f.nodes) {
						got = f.nodes[i].sum
					}
					if !sameBits(got, sum) {
						t.Errorf("%d..%d of %d leaves: node %v has %v, want %v", first, end, leaves,
							n, got, sum)
					}
				}
			}
		}
		if most := len(f.nodes) + len(f.free); 1<<most > 4*leaves*leaves {
			t.Errorf("%d leaves: %d gradients beside", leaves, most)
		}
		f.close()
	}
	dev.Free(grads)
}

func TestCanonicalRefuses(t *testing.T) {
	for want, change := range map[string]func(*job){
		"must divide --batch 12": func(j *job) { j.config.LaneGroups = 5 },
		"need lane groups":       func(j *job) { j.config.LaneGroups = 0 },
		"clips by worker":        func(j *job) { j.config.Clip.Scope = optim.ScopeWorker },
		"are not whole groups":   func(j *job) { j.ranks, j.ends = 2, []int{3, testG} },
		"--sync-every cannot be used with": func(j *job) {
			j.config.Local = optim.Local{Every: 4, Outer: optim.OuterAverage}
		},
		"--accumulate -1: must be": func(j *job) { j.config.Accumulate = -1 },
	} {
		j := canonical(6, optim.ScopeGlobal)
		change(&j)
		if err := j.run(t)[0].err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
