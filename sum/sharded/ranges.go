package sharded

import "slices"

// ranges says which parameters the ranks of a ring own.
type ranges struct {
	ends   []int // ends of the ranks' ranges
	copies int   // number of ranks that keep each range's slots
}

// endsOf returns the ends of the ranges when n floats are cut for this many ranks.
func endsOf(n, ranks int) []int {
	ends := make([]int, ranks)
	units := (n + unit - 1) / unit
	for rank := range ends {
		ends[rank] = min(n, units*(rank+1)/ranks*unit)
	}
	return ends
}

// span returns a rank's range.
func (r ranges) span(rank int) (first, end int) {
	if rank > 0 {
		first = r.ends[rank-1]
	}
	return first, r.ends[rank]
}

// spans returns the ranges whose slots a rank keeps, its own first.
func (r ranges) spans(rank int) [][2]int {
	first, end := r.span(rank)
	all := [][2]int{{first, end}}
	if n := len(r.ends); r.copies > 1 && n > 1 {
		first, end = r.span((rank + n - 1) % n)
		all = append(all, [2]int{first, end})
	}
	return all
}

// offer lists the ranges of slots that a rank has, at the parameters' version. Its size is fixed.
type offer struct {
	Ranges  [MaxCopies][2]int64
	Digests [MaxCopies]uint64 // of each range's slots; zeros if digests are not compared
}

// has reports whether [first, end) is within one of the ranges.
func (o offer) has(first, end int) bool {
	for _, r := range o.Ranges {
		if int(r[0]) <= first && end <= int(r[1]) {
			return true
		}
	}
	return false
}

// differing returns the ranges for which two ranks have different slots.
func differing(all []offer) (ranges [][2]int64) {
	digests := make(map[[2]int64]uint64)
	for _, o := range all {
		for i, r := range o.Ranges {
			digest, known := digests[r]
			switch {
			case !known:
				digests[r] = o.Digests[i]
			case digest != o.Digests[i]:
				ranges = append(ranges, r)
			}
		}
	}
	return ranges
}

// transfer is the move of the slots of the parameters [first, end) at a join.
type transfer struct {
	first, end int
	giver      int  // a rank that has them; -1: none has, or two differ
	travels    bool // a rank needs them and does not have them
}

// plan cuts the parameters at each end of a range that a rank has or needs.
func (r ranges) plan(all []offer) (transfers []transfer) {
	cuts := append([]int{0}, r.ends...)
	for _, o := range all {
		for _, span := range o.Ranges {
			cuts = append(cuts, int(span[0]), int(span[1]))
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	disputed := differing(all)
	for i, end := range cuts[1:] {
		p := transfer{first: cuts[i], end: end, giver: -1}
		inDispute := slices.ContainsFunc(disputed, func(span [2]int64) bool {
			return int(span[0]) <= p.first && p.end <= int(span[1])
		})
		if !inDispute {
			p.giver = slices.IndexFunc(all, func(o offer) bool { return o.has(p.first, p.end) })
		}
		for rank, o := range all {
			for _, span := range r.spans(rank) {
				wants := span[0] <= p.first && p.end <= span[1]
				p.travels = p.travels || wants && !o.has(p.first, p.end) && p.giver >= 0
			}
		}
		transfers = append(transfers, p)
	}
	return transfers
}
