package allreduce

// schedule is what one rank sends and receives in one collective, and where in the buffer.
type schedule struct {
	header Header // generation, sequence and total of every message
	rank   int
	world  int
	chunk  int   // floats of a chunk at most
	first  int   // first ring step: 0, or N-1 for an all-gather by itself
	last   int   // one past the last ring step: 2(N-1), or N-1 for a reduce-scatter by itself
	ends   []int // segment s is [ends[s-1], ends[s]); nil: all of one length, or less by one
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
	return s.messages(hi - lo)
}

// messages is how many it takes to carry n floats.
func (s *schedule) messages(n int) int { return (n + s.chunk - 1) / s.chunk }

// carried returns the header of chunk c of a carry of total floats.
func (s *schedule) carried(total, c int) Header {
	h := s.header
	h.Phase, h.Total = Carried, total
	h.Offset = c * s.chunk
	h.Length = min(s.chunk, total-h.Offset)
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

func mod(a, n int) int { return ((a % n) + n) % n }
