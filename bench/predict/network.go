package predict

import (
	"math"

	"rondo/allreduce"
)

// network is the topology over which workers sum.
type network interface {
	// sum all-reduces a buffer: begin[i] is when place i has it ready, and done[i] becomes when
	// it has the sum.
	sum(bytes float64, begin, done []float64)
	// messages is how many of them a sum simulates, and sent the bytes that each worker sends.
	messages(bytes float64) float64
	sent(bytes float64) float64
}

// flat is one ring of all workers, host after host.
type flat struct {
	*ring
	chunk float64
}

func newFlat(c Config, workers, places int) *flat {
	links, across := same(hop{Link: c.Local}, places), hop{c.Link, newJitter(c.Jitter)}
	for i := range links {
		if (i+1)%c.HostWorkers == 0 && workers > c.HostWorkers {
			links[i] = across
		}
	}
	return &flat{ring: newRing(workers, links, c.Gamma, c.Seed),
		chunk: c.ChunkBytes}
}

func (f *flat) sum(bytes float64, begin, done []float64) {
	f.run(allReduce, cut(bytes, f.world, f.chunk), begin, done)
}

func (f *flat) messages(bytes float64) float64 {
	count := len(cut(bytes, f.world, f.chunk))
	return float64(2*(f.world-1)) * float64(len(f.links)) * float64(count)
}

func (f *flat) sent(bytes float64) float64 {
	return 2 * float64(f.world-1) / float64(f.world) * bytes
}

// hierarchical has a ring within each host, and as many rings of hosts as a host has workers. A
// worker does its part of a block in the one, the other and the one again. While a block crosses
// between hosts it begins the next one, and the next sum behind all of them.
type hierarchical struct {
	hosts, local int // how many, and the workers of each
	chunk        float64
	within       []*ring // of each host that is simulated
	across       []*ring // of each worker of a host that is simulated
	at           []float64
	crossed      [2][]float64 // when each worker has its part of this block, and of the one before
}

// newHierarchical returns the rings of all workers, or of one if there is one place.
func newHierarchical(c Config, workers, places int) *hierarchical {
	h := &hierarchical{local: min(workers, c.HostWorkers), chunk: c.ChunkBytes}
	h.hosts = workers / h.local
	hosts, local := h.hosts, h.local
	if places == 1 {
		hosts, local = 1, 1
	}
	// The rings of hosts share a host's link: each has its turn for every local'th byte.
	shared := hop{c.Link, newJitter(c.Jitter)}
	shared.Beta *= float64(h.local)
	for i := range hosts {
		h.within = append(h.within,
			newRing(h.local, same(hop{Link: c.Local}, local), c.Gamma, c.Seed+uint64(i)<<32))
	}
	for i := range local {
		h.across = append(h.across,
			newRing(h.hosts, same(shared, hosts), c.Gamma, c.Seed+uint64(i+1)<<48))
	}
	h.at = make([]float64, hosts)
	for i := range h.crossed {
		h.crossed[i] = make([]float64, places)
	}
	return h
}

func same(link hop, count int) []hop {
	links := make([]hop, count)
	for i := range links {
		links[i] = link
	}
	return links
}

func (h *hierarchical) sum(bytes float64, begin, done []float64) {
	copy(done, begin)
	before, crossed := h.crossed[0], h.crossed[1]
	var gathered []float64 // the chunks of the block before, none of the first
	for _, block := range h.blocks(bytes) {
		whole, part := h.cuts(block)
		h.inHosts(reduceScatter, whole, done)
		h.cross(part, done, crossed)
		if gathered != nil {
			h.collect(gathered, before, done)
		}
		gathered, before, crossed = whole, crossed, before
	}
	h.collect(gathered, before, done)
}

// cross has all parts of a block summed across hosts; crossed becomes when each worker's is.
func (h *hierarchical) cross(part, begin, crossed []float64) {
	local := len(h.across)
	for i, ring := range h.across {
		for host := range h.at {
			h.at[host] = begin[host*local+i]
		}
		ring.run(allReduce, part, h.at, h.at)
		for host, at := range h.at {
			crossed[host*local+i] = at
		}
	}
}

// collect has each host gather the parts of a block that have crossed.
func (h *hierarchical) collect(whole, crossed, done []float64) {
	for i := range done {
		done[i] = max(done[i], crossed[i])
	}
	h.inHosts(allGather, whole, done)
}

// blocks returns the bytes of the blocks in which a hierarchy sums a buffer.
func (h *hierarchical) blocks(bytes float64) []float64 {
	most := float64(4 * allreduce.Layout{Ranks: h.hosts * h.local}.Block())
	blocks := make([]float64, max(1, int(math.Ceil(bytes/most))))
	for i := range blocks {
		blocks[i] = min(most, bytes-float64(i)*most)
	}
	return blocks
}

// cuts returns the chunks of a block's segments within hosts, and of its parts' across them.
func (h *hierarchical) cuts(block float64) (whole, part []float64) {
	return cut(block, h.local, h.chunk), cut(block/float64(h.local), h.hosts, h.chunk)
}

// inHosts has each host do a collective; at becomes when each worker is done with it.
func (h *hierarchical) inHosts(what phases, chunks, at []float64) {
	local := len(h.across)
	for host, ring := range h.within {
		own := at[host*local : (host+1)*local]
		ring.run(what, chunks, own, own)
	}
}

func (h *hierarchical) messages(bytes float64) float64 {
	places, all := float64(len(h.across)*len(h.within)), 0
	for _, block := range h.blocks(bytes) {
		whole, part := h.cuts(block)
		all += 2*(h.local-1)*len(whole) + 2*(h.hosts-1)*len(part)
	}
	return places * float64(all)
}

func (h *hierarchical) sent(bytes float64) float64 {
	within := 2 * float64(h.local-1) / float64(h.local) * bytes
	return within + 2*float64(h.hosts-1)/float64(h.hosts)*bytes/float64(h.local)
}
