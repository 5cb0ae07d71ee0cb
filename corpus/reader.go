package corpus

import (
	"context"
	"fmt"
	"slices"
)

// Reader reads the tokens that a Sampler selects. It must not be used concurrently.
type Reader struct {
	tokens  Tokens
	sampler *Sampler
	window  []int32 // one lane's tokens, of the longest segment
}

// NewReader makes a Reader. tokens must have the length that the sampler was made for.
func NewReader(tokens Tokens, sampler *Sampler) *Reader {
	if tokens.Len() != sampler.cfg.Tokens {
		panic(fmt.Sprintf("corpus: %d tokens and a sampler of %d", tokens.Len(),
			sampler.cfg.Tokens))
	}
	return &Reader{tokens, sampler, make([]int32, slices.Max(sampler.Lengths())+1)}
}

// Fill reads a step's segments of the lanes [first, first+count). inputs and targets are [L,
// count], with L the step's Length; a target is the token after its input. Fill does not allocate.
func (r *Reader) Fill(
	ctx context.Context, step int64, first, count int, inputs, targets []int32,
) error {
	length := r.sampler.Length(step)
	checkBatch(length, first, count, r.sampler.cfg.Lanes, inputs, targets)
	if err := ctx.Err(); err != nil {
		return err
	}
	for b := range count {
		offset := r.sampler.Offset(step, first+b)
		window := r.window[:length+1]
		if err := r.tokens.ReadTokens(window, offset); err != nil {
			return fmt.Errorf("step %d, lane %d: %w", step, first+b, err)
		}
		writeColumn(inputs, window[:length], b, count)
		writeColumn(targets, window[1:], b, count)
	}
	return nil
}

// writeColumn writes a lane's tokens to column b of dst: [len(row), count].
func writeColumn(dst, row []int32, b, count int) {
	for _, id := range row {
		dst[b] = id
		b += count
	}
}

func checkBatch(bptt, first, count, lanes int, inputs, targets []int32) {
	if first < 0 || count < 1 || first+count > lanes {
		panic(fmt.Sprintf("corpus: lanes [%d, %d) of %d", first, first+count, lanes))
	}
	if len(inputs) != bptt*count || len(targets) != bptt*count {
		panic(fmt.Sprintf("corpus: %d inputs and %d targets for [%d, %d]", len(inputs),
			len(targets), bptt, count))
	}
}

// Padding marks a place without a target; it does not count in the loss. Its input is 0.
const Padding = -1

// Evaluation covers tokens exactly once: every token but the first is the target of one place in
// one segment. The tokens are cut into one row per lane, of nearly equal lengths. Each segment
// reads the next T tokens of every row, with padding after a row's end. The state is zero before
// segment 0 and is then carried on. So the first token of each row is predicted without its
// context; a single lane predicts everything in full context. An Evaluation must not be used
// concurrently.
type Evaluation struct {
	tokens Tokens
	lanes  int
	bptt   int
	row    int64 // targets of a full row
	window []int32
}

// NewEvaluation cuts tokens, at least two, into lanes and segments of bptt tokens.
func NewEvaluation(tokens Tokens, lanes, bptt int) (*Evaluation, error) {
	if lanes < 1 || lanes > MaxLanes {
		return nil, fmt.Errorf("evaluation: %d lanes are not in [1, %d]", lanes, MaxLanes)
	}
	if bptt < 1 || bptt > MaxBPTT {
		return nil, fmt.Errorf("evaluation: --bptt %d is not in [1, %d]", bptt, MaxBPTT)
	}
	if tokens.Len() < 2 {
		return nil, fmt.Errorf("evaluation: %d tokens to evaluate on, but 2 are needed: "+
			"give a longer text", tokens.Len())
	}
	return &Evaluation{
		tokens: tokens,
		lanes:  lanes,
		bptt:   bptt,
		row:    (tokens.Len() - 1 + int64(lanes) - 1) / int64(lanes),
		window: make([]int32, bptt+1),
	}, nil
}

// Targets returns the number of targets in all segments: Len()-1.
func (e *Evaluation) Targets() int64 { return e.tokens.Len() - 1 }

// Segments returns the number of segments of the pass.
func (e *Evaluation) Segments() int64 { return (e.row + int64(e.bptt) - 1) / int64(e.bptt) }

// Reset reports whether the recurrent state must be zero before the segment.
func (e *Evaluation) Reset(segment int64) bool { return segment == 0 }

// Fill reads a segment of the lanes [first, first+count). inputs and targets are [T, count];
// targets are Padding where there is none. Fill does not allocate.
func (e *Evaluation) Fill(
	ctx context.Context, segment int64, first, count int, inputs, targets []int32,
) error {
	checkBatch(e.bptt, first, count, e.lanes, inputs, targets)
	if segment < 0 || segment >= e.Segments() {
		panic(fmt.Sprintf("corpus: segment %d of %d", segment, e.Segments()))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	clear(inputs)
	for i := range targets {
		targets[i] = Padding
	}
	for b := range count {
		from := int64(first+b) * e.row
		to := min(from+e.row, e.Targets())
		from += segment * int64(e.bptt)
		to = min(to, from+int64(e.bptt))
		if from >= to {
			continue
		}
		window := e.window[:to-from+1]
		if err := e.tokens.ReadTokens(window, from); err != nil {
			return fmt.Errorf("segment %d, lane %d: %w", segment, first+b, err)
		}
		writeColumn(inputs, window[:len(window)-1], b, count)
		writeColumn(targets, window[1:], b, count)
	}
	return nil
}
