package allreduce

// schedule holds the steps of one rank in one collective, and the buffer's segments and chunks.
type schedule struct {
	header Header // generation, sequence, element and total of every message
	rank   int
	world  int
	chunk  int     // most numbers in a chunk
	carry  int     // most floats in a chunk of a carry
	first  int     // first ring step: 0, or N-1 for an all-gather by itself
	last   int     // one past the last ring step: 2(N-1), or N-1 for a reduce-scatter by itself
	ends   []int   // segment s is [ends[s-1], ends[s]); nil: equal lengths, give or take 1
	tree   treeRun // set for a tree sum; its treePlan is nil otherwise
}

// sent and received return the segments that this rank sends and receives in ring step k.
func (s *schedule) sent(k int) int     { return mod(s.rank-1-k, s.world) }
func (s *schedule) received(k int) int { return mod(s.rank-2-k, s.world) }

// receives reports whether any chunk arrives. None does if no other rank has floats to gather.
func (s *schedule) receives() bool {
	for k := s.first; k < s.last; k++ {
		if s.chunks(s.received(k)) > 0 {
			return true
		}
	}
	return false
}

// segment returns the bounds of segment i.
func (s *schedule) segment(i int) (lo, hi int) {
	if s.ends == nil {
		size, longer := s.header.Total/s.world, s.header.Total%s.world
		lo = i*size + min(i, longer)
		return lo, (i+1)*size + min(i+1, longer)
	}
	if i > 0 {
		lo = s.ends[i-1]
	}
	return lo, s.ends[i]
}

// chunks returns the number of messages that carry segment i.
func (s *schedule) chunks(i int) int {
	lo, hi := s.segment(i)
	return parts(hi-lo, s.chunk)
}

// carries returns the number of messages for a carry of total floats.
func (s *schedule) carries(total int) int { return parts(total, s.carry) }

// hopStep returns the ring step ahead of which a hop of a carry travels. If no segment is empty,
// every rank has received ring step N-2 before any rank has the sum. Otherwise all hops go first.
func (s *schedule) hopStep(hop int) int {
	if s.header.Total < s.world {
		return 0
	}
	return hop
}

// carried returns the header of chunk c of a hop that carries total floats.
func (s *schedule) carried(hop, total, c int) Header {
	h := s.header
	h.Step, h.Phase, h.Element, h.Total = hop, Carried, Float32, total
	h.Offset = c * s.carry
	h.Length = min(s.carry, total-h.Offset)
	return h
}

// at returns the header of chunk c of segment i in ring step k.
func (s *schedule) at(k, i, c int) Header {
	h := s.header
	lo, hi := s.segment(i)
	h.Step, h.Phase = k, AllGather
	if k < s.world-1 {
		h.Phase = ReduceScatter
	}
	h.Offset = lo + c*s.chunk
	h.Length = min(s.chunk, hi-h.Offset)
	return h
}

// leastChunkBytes is the shortest chunk that a segment is split into for pipelining. In a shorter
// one the cost per message dominates.
const leastChunkBytes = 64 << 10

// ChunkNumbers returns the most numbers that a chunk holds, for a buffer of total numbers on world
// ranks. It is half a segment, so that one chunk is reduced while another is in flight, but at
// least leastChunkBytes and at most mostBytes ([Config.ChunkBytes]).
func ChunkNumbers(total, world, mostBytes int, e Element) int {
	half := parts(total, 2*world)
	return min(max(half, leastChunkBytes/e.Bytes()), mostBytes/e.Bytes())
}

// parts returns how many parts of at most size n divides into.
func parts(n, size int) int { return (n + size - 1) / size }

func mod(a, n int) int { return ((a % n) + n) % n }
