package predict

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// An eventRing is the slow, obvious twin of ring. It has every rank, link and receiver with its
// queue, and handles events in the order of their times.
type eventRing struct {
	*ring
	chunks []float64
	first  int
	last   int
	events eventHeap
	ranks  []*eventRank
}

type eventRank struct {
	begun         bool
	step, chunk   int  // that is sent next
	sending       bool // the link is occupied
	queue         []eventMessage
	reducing      bool
	reduced, sent int
	at            float64 // of the last thing it did
}

type eventMessage struct{ step, chunk int }

type happening int

const (
	begins happening = iota
	sent
	arrives
	reduced
)

type ringEvent struct {
	at   float64
	what happening
	rank int
	eventMessage
}

type eventHeap []ringEvent

func (h eventHeap) Len() int           { return len(h) }
func (h eventHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h eventHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(e any)        { *h = append(*h, e.(ringEvent)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}

func (r *eventRing) collective(t *testing.T, what phases, begin []float64) []float64 {
	t.Helper()
	r.taken++
	r.first, r.last = what.steps(r.world)
	r.ranks = nil
	for i, at := range begin {
		r.ranks = append(r.ranks, &eventRank{step: r.first})
		heap.Push(&r.events, ringEvent{at: at, what: begins, rank: i})
	}
	for r.events.Len() > 0 {
		e := heap.Pop(&r.events).(ringEvent)
		rank := r.ranks[e.rank]
		switch e.what {
		case begins:
			rank.begun = true
		case sent:
			rank.sending, rank.sent, rank.at = false, rank.sent+1, max(rank.at, e.at)
			link := r.links[e.rank]
			at := e.at + link.Alpha
			if link.jitter != nil {
				message := uint64(e.step)*uint64(len(r.chunks)) + uint64(e.chunk)
				at += link.jitter.draw(r.key+r.taken, uint64(e.rank), message)
			}
			heap.Push(&r.events, ringEvent{at, arrives, (e.rank + 1) % r.world, e.eventMessage})
		case arrives:
			rank.queue = append(rank.queue, e.eventMessage)
		case reduced:
			rank.reducing, rank.reduced = false, rank.reduced+1
			rank.at = max(rank.at, e.at)
		}
		r.send(e.at, e.rank)
		r.reduce(e.at, e.rank)
	}
	done := make([]float64, r.world)
	all := (r.last - r.first) * len(r.chunks)
	for i, rank := range r.ranks {
		if rank.sent != all || rank.reduced != all {
			t.Fatalf("rank %d has sent %d and reduced %d of %d", i, rank.sent, rank.reduced, all)
		}
		done[i] = rank.at
	}
	return done
}

// send begins to send, if the rank may: of all steps but the first it must have reduced as many.
func (r *eventRing) send(now float64, i int) {
	rank, link := r.ranks[i], r.links[i]
	have := (rank.step-r.first-1)*len(r.chunks) + rank.chunk + 1
	if !rank.begun || rank.sending || rank.step == r.last || rank.reduced < have {
		return
	}
	rank.sending = true
	heap.Push(&r.events, ringEvent{now + link.Message + link.Beta*r.chunks[rank.chunk], sent, i,
		eventMessage{rank.step, rank.chunk}})
	if rank.chunk++; rank.chunk == len(r.chunks) {
		rank.step, rank.chunk = rank.step+1, 0
	}
}

// reduce begins to reduce the message that is next in the schedule, if it has come.
func (r *eventRing) reduce(now float64, i int) {
	rank := r.ranks[i]
	if !rank.begun || rank.reducing {
		return
	}
	next := eventMessage{r.first + rank.reduced/len(r.chunks), rank.reduced % len(r.chunks)}
	for at, m := range rank.queue {
		if m != next {
			continue
		}
		rank.queue = append(rank.queue[:at], rank.queue[at+1:]...)
		rank.reducing = true
		gamma := r.gamma
		if m.step >= r.world-1 {
			gamma = 0
		}
		heap.Push(&r.events, ringEvent{now + gamma*r.chunks[m.chunk], reduced, i, m})
		return
	}
}

// The recurrence and the events say the same, for links, beginnings and jitter drawn at random.
func TestRecurrenceIsEvents(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	for world := 2; world <= 9; world++ {
		for _, what := range []phases{allReduce, reduceScatter, allGather} {
			for _, bytes := range []float64{4, 1000, 25_000} {
				name := fmt.Sprintf("%d ranks, phases %d, %v bytes", world, what, bytes)
				links, begin := make([]hop, world), make([]float64, world)
				for i := range links {
					links[i] = hop{Link{Alpha: source.ExpFloat64(), Beta: source.ExpFloat64() / 500,
						Message: source.Float64()}, newJitter(float64(source.IntN(2)))}
					begin[i] = 20 * source.Float64()
				}
				compareWithEvents(t, name, world, links, what, bytes, begin)
			}
		}
	}
}

func compareWithEvents(
	t *testing.T, name string, world int, links []hop, what phases, bytes float64, begin []float64,
) {
	t.Helper()
	const gamma = 0.001
	fast, slow := newRing(world, links, gamma, 3), newRing(world, links, gamma, 3)
	chunks := cut(bytes, world, 1000)
	done := make([]float64, world)
	fast.run(what, chunks, begin, done)
	want := (&eventRing{ring: slow, chunks: chunks}).collective(t, what, begin)
	for i := range done {
		if math.Abs(done[i]-want[i]) > 1e-9*want[i] {
			t.Fatalf("%s: rank %d is done at %v, by events at %v", name, i, done[i], want[i])
		}
	}
}
