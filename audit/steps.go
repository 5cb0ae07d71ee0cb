package audit

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// proveRing checks a ring step by step. It reads the sections of all its workers side by side.
func (p *prover) proveRing(ctx context.Context, r *ring) (err error) {
	var streams []*stream
	defer func() {
		for _, s := range streams {
			if e := s.source.Close(); err == nil {
				err = e
			}
		}
	}()
	for _, section := range r.sections {
		s, err := p.open(section)
		if err != nil {
			return err
		}
		streams = append(streams, s)
		if err := p.next(s); err != nil {
			return err
		}
	}
	expected := r.counted + 1 // next step that must be committed
	for {
		step, any := int64(0), false
		for _, s := range streams {
			if !s.done && (!any || s.step < step) {
				step, any = s.step, true
			}
		}
		if !any {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		committed, err := p.proveStep(r, streams, step)
		if err != nil {
			return err
		}
		if committed && r.counts(step) {
			p.missing(r, expected, step-1)
			expected = step + 1
		} else {
			p.report.Repeated++
		}
	}
	p.missing(r, expected, r.until)
	return nil
}

// counts reports whether a committed step of the ring counts.
func (r *ring) counts(step int64) bool { return step > r.counted && step <= r.until }

// missing reports steps that count but were not committed.
func (p *prover) missing(r *ring, from, to int64) {
	if from <= to {
		p.find("no worker committed steps %d to %d of generation %d", from, to, r.Generation)
	}
}

// reading describes the lanes that one worker read for one of a step's segments.
type reading struct {
	worker  string
	segment int
	first   int
	count   int
	offsets []int64 // of examples
}

// proveStep checks one step over all streams. It returns whether any worker committed it.
func (p *prover) proveStep(r *ring, streams []*stream, step int64) (committed bool, err error) {
	var readings []reading
	var ends []ended
	segments := int64(0)
	for _, s := range streams {
		for !s.done && s.step == step {
			if read := s.head.Read; read != nil {
				p.proveRead(s, read)
				segments += int64(len(read.Offsets))
				committed = committed || s.ring.within(step) && step <= s.last
				lanes := reading{s.worker(), read.Segment, read.First, len(read.Offsets), nil}
				if p.epochs != nil {
					lanes.offsets = slices.Clone(read.Offsets)
				}
				// proveRead has reported readings outside of these limits.
				if lanes.first <= p.report.Lanes-lanes.count && lanes.segment < p.report.Each {
					readings = append(readings, lanes)
				}
			} else {
				ends = append(ends, ended{s, s.lastCommit + 1, s.head.Commit})
				p.proveCommit(s)
				committed = true
			}
			if err := p.next(s); err != nil {
				return false, err
			}
		}
	}
	if !committed || !r.counts(step) {
		p.report.Again += segments
	}
	if !committed {
		return false, nil
	}
	slices.SortFunc(readings, func(a, b reading) int {
		return cmp.Or(cmp.Compare(a.segment, b.segment), cmp.Compare(a.first, b.first),
			cmp.Compare(a.worker, b.worker))
	})
	counts := r.counts(step)
	if counts && len(ends) > 0 {
		p.proveUpdate(r, streams, step, ends)
	}
	for segment := range p.report.Each {
		n := 0
		for n < len(readings) && readings[n].segment == segment {
			n++
		}
		p.proveLanes(r, step, segment, readings[:n])
		if p.epochs != nil && counts {
			p.proveExamples((step-1)*int64(p.report.Each)+int64(segment), readings[:n])
		}
		readings = readings[n:]
	}
	if counts {
		p.report.Segments += int64(p.report.Lanes) * int64(p.report.Each)
	}
	return true, nil
}

// proveExamples adds a segment's readings to its epoch.
func (p *prover) proveExamples(segment int64, readings []reading) {
	for _, x := range readings {
		p.epochs.read(segment, x.offsets, p.find)
	}
	p.epochs.end(segment, p.find)
}

// proveCommit checks a commit line against the worker's earlier lines.
func (p *prover) proveCommit(s *stream) {
	if s.lastRead != s.step {
		p.find("%s line %d: %s committed step %d of generation %d without having read it", s.file,
			s.number, s.worker(), s.step, s.ring.Generation)
	}
	if s.lastCommit == s.step {
		p.find("%s line %d: %s committed step %d of generation %d twice", s.file, s.number,
			s.worker(), s.step, s.ring.Generation)
	}
	s.lastRead, s.lastCommit = s.step, s.step
}

// proveRead checks a read line against the worker's earlier lines, the sampler and the text.
func (p *prover) proveRead(s *stream, read *readLine) {
	at := func(format string, a ...any) {
		p.find("%s line %d: step %d of generation %d: "+format, append([]any{s.file, s.number,
			read.Step, read.Generation}, a...)...)
	}
	// more: further lanes or segments of the same step.
	more := s.lastRead != s.lastCommit && read.Step == s.lastRead
	switch {
	case more && cmp.Or(cmp.Compare(read.First, s.lastFirst),
		cmp.Compare(read.Segment, s.lastSegment)) <= 0:
		at("%s read its lanes from %d on twice, or in another order", s.worker(), read.First)
	case more:
	case s.lastRead != s.lastCommit && !s.ring.within(s.lastRead):
		at("%s read it without having committed step %d", s.worker(), s.lastRead)
	case read.Step != s.lastRead+1:
		at("%s read it after step %d", s.worker(), s.lastRead)
	}
	s.lastRead, s.lastFirst, s.lastSegment = read.Step, read.First, read.Segment
	if n := len(read.Offsets); read.First > p.report.Lanes-n {
		at("%d lanes from %d on were read, and there are %d", n, read.First, p.report.Lanes)
		return
	}
	if read.Segment >= p.report.Each {
		at("its segment %d was read, and a step has %d (--accumulate)", read.Segment, p.report.Each)
		return
	}
	segment := (read.Step-1)*int64(p.report.Each) + int64(read.Segment)
	for i, offset := range read.Offsets {
		lane := read.First + i
		if p.epochs != nil {
			if !p.epochs.valid(offset) {
				at("lane %d read example %d, and there are %d", lane, offset, p.batches.Tokens)
				return
			}
			continue
		}
		if want := p.sampler.Offset(segment, lane); offset != want {
			at("lane %d was read at token %d instead of %d", lane, offset, want)
			return
		}
	}
	if p.tokens == nil {
		return
	}
	crc, err := p.checksum(read)
	if err != nil {
		at("the text: %v", err)
	} else if crc != read.CRC {
		at("lanes %d to %d: other tokens were read than the text has there", read.First,
			read.First+len(read.Offsets)-1)
	}
}

// proveLanes checks that the readings of a committed step's segment cover each lane once. The
// readings are sorted by lane.
func (p *prover) proveLanes(r *ring, step int64, segment int, readings []reading) {
	next, which := 0, ""
	if p.report.Each > 1 {
		which = fmt.Sprintf("segment %d, ", segment)
	}
	skipped := func(to int) {
		if next < to {
			p.find("step %d of generation %d: %slanes %d to %d were skipped", step, r.Generation,
				which, next, to-1)
		}
	}
	for _, x := range readings {
		skipped(x.first)
		if x.first < next {
			p.find("step %d of generation %d: %slanes %d to %d were read twice, the second time "+
				"by %s", step, r.Generation, which, x.first, min(next, x.first+x.count)-1, x.worker)
		}
		next = max(next, x.first+x.count)
	}
	skipped(p.report.Lanes)
}

// checksum computes the checksum that the read line should have, from the text.
func (p *prover) checksum(read *readLine) (uint32, error) {
	segment := (read.Step-1)*int64(p.report.Each) + int64(read.Segment)
	bptt, count := p.sampler.Length(segment), len(read.Offsets)
	p.inputs = slices.Grow(p.inputs[:0], bptt*count)[:bptt*count] // [T, count]
	p.window = slices.Grow(p.window[:0], bptt)[:bptt]
	for lane, offset := range read.Offsets {
		if err := p.tokens.ReadTokens(p.window, offset); err != nil {
			return 0, err
		}
		for t, id := range p.window {
			p.inputs[t*count+lane] = id
		}
	}
	p.bytes = p.bytes[:0]
	for _, id := range p.inputs {
		p.bytes = binary.LittleEndian.AppendUint32(p.bytes, uint32(id))
	}
	return crc32.Checksum(p.bytes, castagnoli()), nil
}
