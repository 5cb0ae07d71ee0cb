package predict

import (
	"math"

	"rondo/allreduce"
)

// Link is the connection from a rank to its successor, in Hockney's model with a cost per message:
// a message of n bytes occupies it for Message + n*Beta, and arrives Alpha later.
type Link struct {
	Alpha   float64 // seconds from the last byte's sending until the receiver has it
	Beta    float64 // seconds a byte
	Message float64 // seconds a message
}

// hop is a link in a simulation: its messages' latency may have jitter.
type hop struct {
	Link
	jitter *jitter // nil: none
}

// ring is a ring of ranks with package allreduce's schedule. In ring step k each rank sends a
// segment. A chunk may go as soon as the rank has reduced the chunk that arrived for the same place
// in step k-1. There is no barrier between steps, phases or collectives.
//
// Ranks with equal links need to be simulated only once: a ring may have fewer places than ranks,
// and then rank r is in place r modulo the number of places.
type ring struct {
	world int
	links []hop   // of each place, to the next
	gamma float64 // seconds to reduce a byte
	key   uint64  // of the jitter: rings with another draw others

	// State between collectives: the times from which each place's link and receiver are free.
	free, busy []float64

	// [places * chunks]: when a chunk may be sent on, in this step and the next.
	ready, next []float64
	taken       uint64 // collectives
}

// newRing returns a ring whose links are free from the beginning of time.
func newRing(world int, links []hop, gamma float64, key uint64) *ring {
	r := &ring{world: world, links: links, gamma: gamma, key: key,
		free: make([]float64, len(links)), busy: make([]float64, len(links))}
	for i := range links {
		r.free[i], r.busy[i] = math.Inf(-1), math.Inf(-1)
	}
	return r
}

// phases are the ring steps of a collective.
type phases int

const (
	allReduce phases = iota
	reduceScatter
	allGather
)

// steps returns the first step of a collective in a ring, and the one after its last.
func (p phases) steps(world int) (first, last int) {
	switch p {
	case reduceScatter:
		return 0, world - 1
	case allGather:
		return world - 1, 2 * (world - 1)
	}
	return 0, 2 * (world - 1)
}

// cut returns the bytes of the chunks of a segment, an N-th of the buffer, as the ring cuts it. All
// segments have the same length, to a fraction of a byte. Numbers are float32; with 16 bits the
// chunks have the same bytes.
func cut(bytes float64, world int, chunk float64) []float64 {
	segment := bytes / float64(world)
	const float = 4
	numbers := allreduce.ChunkNumbers(int(math.Ceil(bytes/float)), world, int(chunk),
		allreduce.Float32)
	chunk = float64(float * numbers)
	count := max(1, int(math.Ceil(segment/chunk)))
	chunks := make([]float64, count)
	for i := range chunks {
		chunks[i] = min(chunk, segment-float64(i)*chunk)
	}
	return chunks
}

// run simulates a collective, queued behind the earlier ones. begin[i] is when place i has its
// buffer ready, and done[i] becomes the time when it has finished; they may be the same slice.
//
// S, F and G are the times when rank r begins to send chunk c of step k, has sent it, and rank r+1
// has reduced it:
//
//	S(r,k,c) = max(F of the message before on the link, G(r-1,k-1,c), or begin(r) at first)
//	F(r,k,c) = S(r,k,c) + Message + Beta*bytes
//	G(r,k,c) = max(F(r,k,c) + Alpha + jitter, G of the message before on the link, begin(r+1))
//	           + gamma*bytes, the last term in the reduce-scatter only
func (r *ring) run(what phases, chunks, begin, done []float64) {
	r.taken++
	places, count := len(r.links), len(chunks)
	if r.world == 1 {
		copy(done, begin)
		return
	}
	r.ready, r.next = sized(r.ready, places*count), sized(r.next, places*count)
	for i := range places {
		r.busy[i] = max(r.busy[i], begin[i])
		for c := range count {
			r.ready[i*count+c] = begin[i]
		}
	}
	first, last := what.steps(r.world)
	for k := first; k < last; k++ {
		gamma := r.gamma
		if k >= r.world-1 {
			gamma = 0
		}
		r.step(uint64(k), gamma, chunks)
		r.ready, r.next = r.next, r.ready
	}
	for i := range places {
		done[i] = max(r.free[i], r.busy[i])
	}
}

// step has every place send a segment, and its successor reduce it.
func (r *ring) step(k uint64, gamma float64, chunks []float64) {
	places, count := len(r.links), len(chunks)
	for i, link := range r.links {
		to := i + 1
		if to == places {
			to = 0
		}
		free, busy := r.free[i], r.busy[to]
		ready, next := r.ready[i*count:(i+1)*count], r.next[to*count:(to+1)*count]
		for c, bytes := range chunks {
			free = max(free, ready[c]) + link.Message + link.Beta*bytes
			arrives := free + link.Alpha
			if link.jitter != nil {
				arrives += link.jitter.draw(r.key+r.taken, uint64(i), k*uint64(count)+uint64(c))
			}
			busy = max(arrives, busy) + gamma*bytes
			next[c] = busy
		}
		r.free[i], r.busy[to] = free, busy
	}
}

func sized(s []float64, n int) []float64 {
	if cap(s) < n {
		return make([]float64, n)
	}
	return s[:n]
}

// AllReduce returns the seconds of one all-reduce around a ring of world ranks with equal links,
// all of which begin at once.
func AllReduce(world int, bytes, chunkBytes float64, link Link, gamma float64) float64 {
	done := []float64{0}
	newRing(world, []hop{{Link: link}}, gamma, 0).run(allReduce, cut(bytes, world, chunkBytes),
		done, done)
	return done[0]
}
