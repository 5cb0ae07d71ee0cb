package audit

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"rondo/corpus"
)

// actor is a worker of a simulated job: its log and its state.
type actor struct {
	id  string
	log *Log
	state
}

// state is a worker's state: the last ring that it recorded, its last step (-1: none), the ring
// that committed that step, and the digest of the parameters.
type state struct {
	joined    uint64
	done      int64
	committed uint64
	digest    uint64
}

// after returns the digest of the parameters that a ring's step leaves. Rings add in other orders.
func after(digest, ring uint64, step int64) uint64 {
	return (digest^ring)*0x9e3779b97f4a7c15 + uint64(step)
}

// newer compares two states: positive if a ring prefers to start from s, negative if from o.
func (s state) newer(o state) int {
	return cmp.Or(cmp.Compare(s.joined, o.joined), cmp.Compare(s.done, o.done),
		cmp.Compare(s.committed, o.committed))
}

func stateless() state { return state{done: -1} }

// history simulates a job: rings form, do steps, break and form again.
type history struct {
	t       *testing.T
	random  *rand.Rand
	dir     string
	batches corpus.SamplerConfig
	sampler *corpus.Sampler
	text    corpus.IDs
	reader  *corpus.Reader
	workers []*actor // alive
	each    int      // segments per lane and step
	alone   bool     // each lane has its own read line
	born    int
	saved   state // of the newest checkpoint
	run     int64
	ring    uint64
	first   int64 // steps done before there were logs
	last    int64 // last step of the last ring
}

func newHistory(t *testing.T, seed uint64) *history {
	t.Helper()
	h := &history{t: t, random: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), run: 1000}
	h.batches = corpus.SamplerConfig{Lanes: 1 + h.random.IntN(6), BPTT: 1 + h.random.IntN(4),
		Seed: seed, Sampling: corpus.Sequential}
	if h.random.IntN(2) == 0 {
		h.batches.Sampling = corpus.Random
	}
	h.each, h.alone = 1+int(seed%6)/5, seed%7 == 0
	h.text = make(corpus.IDs, 100+h.random.IntN(200))
	for i := range h.text {
		h.text[i] = h.random.Int32N(1 << 20)
	}
	h.batches.Tokens = int64(len(h.text))
	var err error
	h.sampler, err = corpus.NewSampler(h.batches)
	check(t, err)
	h.reader = corpus.NewReader(h.text, h.sampler)
	return h
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// join adds a worker without state.
func (h *history) join() {
	h.born++
	id := fmt.Sprintf("worker-%d", h.born)
	log, err := Open(h.dir, id, h.sampler.Offset)
	check(h.t, err)
	h.workers = append(h.workers, &actor{id: id, log: log, state: stateless()})
}

// leave stops a worker.
func (h *history) leave(a *actor) {
	check(h.t, a.log.Close())
	h.workers = slices.DeleteFunc(h.workers, func(b *actor) bool { return a == b })
}

// play simulates a number of rings and returns the logs.
func (h *history) play(rings int) fstest.MapFS {
	for range 1 + h.random.IntN(h.batches.Lanes) {
		h.join()
	}
	h.first = int64(h.random.IntN(2) * h.random.IntN(10))
	h.saved.done = h.first // a checkpoint from before logging, or the beginning
	for i := range rings {
		h.doRing(i == rings-1)
		if i < rings-1 {
			h.trouble()
		}
	}
	return h.logs()
}

// logs stops all workers and returns their logs.
func (h *history) logs() fstest.MapFS {
	logs := fstest.MapFS{}
	for _, a := range slices.Clone(h.workers) {
		h.leave(a)
	}
	entries, err := os.ReadDir(h.dir)
	check(h.t, err)
	for _, e := range entries {
		text, err := os.ReadFile(h.dir + "/" + e.Name())
		check(h.t, err)
		logs[e.Name()] = &fstest.MapFile{Data: text}
	}
	return logs
}

// trouble changes the workers between two rings.
func (h *history) trouble() {
	if h.random.IntN(6) == 0 { // all die; the next run starts from the checkpoint
		for _, a := range slices.Clone(h.workers) {
			h.leave(a)
		}
		h.run, h.ring = h.run+1+h.random.Int64N(5), 0
	}
	for range h.random.IntN(3) {
		if len(h.workers) > 1 {
			h.leave(h.workers[h.random.IntN(len(h.workers))])
		}
	}
	for len(h.workers) == 0 || h.random.IntN(2) == 0 && len(h.workers) < h.batches.Lanes {
		h.join()
	}
	if h.random.IntN(8) == 0 { // two neighbours died together: back to the checkpoint
		for _, a := range h.workers {
			a.state = stateless()
		}
	}
}

// doRing forms a ring of some workers. It does steps until the ring breaks or the job ends.
func (h *history) doRing(last bool) {
	h.ring += 1 + h.random.Uint64N(3)
	h.random.Shuffle(len(h.workers), func(i, j int) {
		h.workers[i], h.workers[j] = h.workers[j], h.workers[i]
	})
	members := slices.Clone(h.workers)
	if len(members) > 1 && h.random.IntN(3) == 0 && !last {
		members = members[1:] // one worker is cut off with its state; it may come back
	}
	from := slices.MaxFunc(members, func(a, b *actor) int { return a.newer(b.state) }).state
	if from.done < 0 {
		from = h.checkpoint()
	}
	for h.begin(members, from, last) && h.saved.done < h.last && h.random.IntN(4) == 0 {
		from = h.checkpoint() // no state can be trusted: all start again in the same ring
	}
}

// checkpoint returns the state of the newest checkpoint, as the forming ring records it.
func (h *history) checkpoint() state {
	return state{done: h.saved.done, committed: h.ring, digest: h.saved.digest}
}

// begin starts a ring's workers from a state and does steps. It returns false if a worker was lost.
func (h *history) begin(members []*actor, with state, last bool) bool {
	for i, a := range members {
		if h.random.IntN(10) == 0 && !last {
			for _, b := range members[i:] {
				b.state = with // it died while the ring formed, so only some recorded it
			}
			return false
		}
		a.state = state{h.ring, with.done, with.committed, with.digest}
		check(h.t, a.log.Ring(Ring{Run: h.run, Generation: h.ring, From: with.done,
			Digest: with.digest, World: len(members), Rank: i, Accumulate: h.each,
			Batches: h.batches}))
	}
	from := with.done
	h.last = from
	steps := h.random.Int64N(12)
	for step := from + 1; step <= from+steps; step++ {
		if !last && h.random.IntN(8) == 0 {
			h.doStep(members, step, h.random.IntN(2*len(members)))
			return false
		}
		h.doStep(members, step, 2*len(members))
		h.last = step
		if h.random.IntN(5) == 0 {
			h.saved = members[0].state
		}
	}
	return true
}

// doStep does a step. reached is the number of its intents and then commits that happen.
func (h *history) doStep(members []*actor, step int64, reached int) {
	ends := make([]int, len(members))
	for i := range ends {
		ends[i] = h.batches.Lanes * (i + 1) / len(members)
	}
	first := 0
	for i, a := range members {
		for i < reached && first < ends[i] {
			count := ends[i] - first
			if h.alone {
				count = 1
			}
			h.read(a, step, first, count)
			first += count
		}
		first = ends[i]
	}
	for i, a := range members {
		if len(members)+i < reached {
			a.done, a.committed, a.digest = step, h.ring, after(a.digest, h.ring, step)
			check(h.t, a.log.Commit(Commit{Step: step, Digest: a.digest}))
		}
	}
}

// read makes a worker read some lanes for a step.
func (h *history) read(a *actor, step int64, first, count int) {
	inputs := make([]int32, h.batches.BPTT*count)
	for segment := range h.each {
		check(h.t, h.reader.Fill(h.t.Context(), (step-1)*int64(h.each)+int64(segment), first, count,
			inputs, make([]int32, len(inputs))))
		check(h.t, a.log.Intend(step, segment, first, count, inputs))
	}
}
