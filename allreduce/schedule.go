package allreduce

// schedule is what one rank sends and receives in one collective, and where in the buffer.
type schedule struct {
	header Header // generation, sequence, element and total of every message
	rank   int
	world  int
	chunk  int     // numbers of a chunk at most
	carry  int     // floats of a chunk of the carry at most
	first  int     // first ring step: 0, or N-1 for an all-gather by itself
	last   int     // one past the last ring step: 2(N-1), or N-1 for a reduce-scatter by itself
	ends   []int   // segment s is [ends[s-1], ends[s]); nil: all of one length, or less by one
	tree   treeRun // of a tree's sum; without a plan: none
}

// sent and received are the segments that this rank sends and receives in ring step k.
func (s *schedule) sent(k int) int     { return mod(s.rank-1-k, s.world) }
func (s *schedule) received(k int) int { return mod(s.rank-2-k, s.world) }

// receives reports whether any chunk comes; a rank that alone has floats to gather gets none.
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

// chunks is the number of messages that carry segment i.
func (s *schedule) chunks(i int) int {
	lo, hi := s.segment(i)
	return parts(hi-lo, s.chunk)
}

// carries is the number of messages of a carry of total floats.
func (s *schedule) carries(total int) int { return parts(total, s.carry) }

// carried returns the header of chunk c of a carry of total floats.
func (s *schedule) carried(total, c int) Header {
	h := s.header
	h.Phase, h.Element, h.Total = Carried, Float32, total
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

// leastChunkBytes is how short chunks are cut for the sake of the pipeline: in a shorter one a
// message's own cost would be most of it.
const leastChunkBytes = 64 << 10

// ChunkNumbers is how many numbers a chunk has at most, of total that are cut into segments for
// each of world ranks: half a segment, so that one chunk is reduced while another is on the way,
// within bounds. mostBytes is [Config.ChunkBytes].
func ChunkNumbers(total, world, mostBytes int, e Element) int {
	half := parts(total, 2*world)
	return min(max(half, leastChunkBytes/e.Bytes()), mostBytes/e.Bytes())
}

// parts is how many parts of at most size n makes.
func parts(n, size int) int { return (n + size - 1) / size }

func mod(a, n int) int { return ((a % n) + n) % n }
