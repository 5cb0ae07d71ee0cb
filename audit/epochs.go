package audit

import (
	"fmt"

	"rondo/corpus"
)

// maxExamples bounds the examples of an epoch, of which one bit each is kept.
const maxExamples = 1 << 28

// epochs checks that the steps that count read each example once an epoch. An epoch's segments end
// before the next one's begin.
type epochs struct {
	examples int64 // n
	segments int64 // of an epoch: ceil(n/G)
	epoch    int64 // the one that is being read, from 0
	whole    bool  // the logs have the epoch's first segment
	seen     []uint64
	count    int64 // examples seen
	empty    int64 // lanes that read none; an epoch has at most mostEmpty
	// mostEmpty is S*G-n, for S segments of G lanes.
	mostEmpty int64
	complete  int64 // epochs in which each example was read
}

// newEpochs checks the batches of a ring line.
func newEpochs(b corpus.SamplerConfig) (*epochs, error) {
	if b.Tokens < 1 || b.Tokens > maxExamples || b.Lanes < 1 || b.Lanes > corpus.MaxLanes ||
		b.BPTT != 0 {
		return nil, fmt.Errorf("%d examples in %d lanes are not possible", b.Tokens, b.Lanes)
	}
	lanes := int64(b.Lanes)
	segments := (b.Tokens + lanes - 1) / lanes
	return &epochs{examples: b.Tokens, segments: segments, mostEmpty: segments*lanes - b.Tokens,
		seen: make([]uint64, (b.Tokens+63)/64), epoch: -1}, nil
}

// valid reports whether a lane can have read this example; -1: none.
func (e *epochs) valid(example int64) bool { return example >= -1 && example < e.examples }

// read adds the examples that were read in a segment of a step that counts. Segments come in
// order. find reports what is wrong.
func (e *epochs) read(segment int64, examples []int64, find func(format string, a ...any)) {
	if at := segment / e.segments; at != e.epoch {
		e.epoch, e.count, e.empty = at, 0, 0
		e.whole = segment%e.segments == 0
		clear(e.seen)
	}
	for _, example := range examples {
		if !e.valid(example) {
			continue
		}
		if example < 0 {
			if e.empty++; e.empty == e.mostEmpty+1 {
				find("epoch %d: more than %d lanes read no example, the last in segment %d",
					e.epoch+1, e.mostEmpty, segment%e.segments+1)
			}
			continue
		}
		word, bit := &e.seen[example/64], uint64(1)<<(example%64)
		if *word&bit != 0 {
			find("epoch %d: example %d was read twice, the second time in segment %d", e.epoch+1,
				example, segment%e.segments+1)
			continue
		}
		*word |= bit
		e.count++
	}
}

// end follows the last reading of a segment.
func (e *epochs) end(segment int64, find func(format string, a ...any)) {
	if segment%e.segments != e.segments-1 || segment/e.segments != e.epoch || !e.whole {
		return
	}
	if missing := e.examples - e.count; missing > 0 {
		find("epoch %d: %d of %d examples were not read", e.epoch+1, missing, e.examples)
		return
	}
	e.complete++
}
