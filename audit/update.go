package audit

import "fmt"

// ended is one worker's commit of a step.
type ended struct {
	by     *stream
	first  int64 // the step, or the first of its round
	commit *commitLine
}

// proveUpdate checks that a counted step left the same parameters on all workers that committed it,
// and that it was computed with the same. A worker whose parameters differ from most may have been
// found by the others after the step, so it may only take no part in the next one.
func (p *prover) proveUpdate(r *ring, streams []*stream, step int64, ends []ended) {
	for _, s := range streams {
		if s.differs && s.lastRead == step {
			p.find("step %d of generation %d was computed with the parameters of %s, which were "+
				"not most workers' after the step before", step, r.Generation, s.worker())
		}
	}
	counts := map[commitLine]int{}
	most := *ends[0].commit
	for _, e := range ends {
		if counts[*e.commit]++; counts[*e.commit] > counts[most] {
			most = *e.commit
		}
	}
	if 2*counts[most] <= len(ends) {
		p.find("step %d of generation %d: no more than half of the workers had the same "+
			"parameters after it", step, r.Generation)
		return
	}
	for _, e := range ends {
		e.by.differs = *e.commit != most
		if e.by.differs && len(p.report.Corrupt) < maxFindings {
			p.report.Corrupt = append(p.report.Corrupt, fmt.Sprintf("%s after step %d",
				e.by.worker(), step))
		}
	}
	if most.Skipped {
		p.skip(r, ends[0].first, step, &most)
	}
}

// skip adds the steps of one skipped commit to the report.
func (p *prover) skip(r *ring, first, last int64, c *commitLine) {
	p.report.Skipped += last - first + 1
	skip := Skip{First: first, Last: last, Generation: r.Generation, Nonfinite: c.Nonfinite,
		Random: c.Random}
	if c.Nonfinite == 1 {
		skip.Rank = c.Rank
		for _, s := range r.sections {
			if s.ring.Rank == c.Rank {
				skip.Worker = s.worker()
			}
		}
	}
	if n := len(p.report.Skips); n > 0 {
		if before := p.report.Skips[n-1]; before.Last+1 == first {
			before.First, before.Last = skip.First, skip.Last
			if before == skip {
				p.report.Skips[n-1].Last = last
				return
			}
		}
	}
	if len(p.report.Skips) < maxFindings {
		p.report.Skips = append(p.report.Skips, skip)
	}
}
