package count

import (
	"context"
	"fmt"

	"rondo/corpus"
	"rondo/train"
)

// Text is a sequence, of tokens or of numbers of rows, whose targets are cut into examples of T
// consecutive ones. The lanes read them in order; the last segment may have lanes without one.
// Together they have every target once, with what is before it.
type Text struct {
	tokens        corpus.Tokens
	first         int64 // the first target
	lanes, length int   // G, T
	apart         bool  // see Apart
}

// NewText cuts the tokens from first on into examples of at most this length, and into one for each
// lane if that is shorter.
func NewText(tokens corpus.Tokens, first int64, lanes, length int) *Text {
	share := (tokens.Len() - first + int64(lanes) - 1) / int64(lanes)
	return &Text{tokens: tokens, first: first, lanes: lanes,
		length: int(max(1, min(int64(length), share)))}
}

// Apart gives each lane a part of the text of its own, instead of every G-th example: a step then
// has examples from all over the text.
func (t *Text) Apart() *Text {
	t.apart = true
	return t
}

// Examples is the number of examples.
func (t *Text) Examples() int64 {
	return max(0, (t.tokens.Len()-t.first+int64(t.length)-1)/int64(t.length))
}

// Segments is the number of segments in which the lanes read all examples.
func (t *Text) Segments() int64 { return (t.Examples() + int64(t.lanes) - 1) / int64(t.lanes) }

// Example is the number of the example that a lane reads in a segment; -1: none. Segments go on
// from epoch to epoch.
func (t *Text) Example(segment int64, lane int) int64 {
	n := segment%t.Segments()*int64(t.lanes) + int64(lane)
	if t.apart {
		n = int64(lane)*t.Segments() + segment%t.Segments()
	}
	if n >= t.Examples() {
		return -1
	}
	return n
}

// targets returns the first target of a lane, and the one after its last.
func (t *Text) targets(segment int64, lane int) (from, to int64) {
	n := t.Example(segment, lane)
	if n < 0 {
		return 0, 0
	}
	from = t.first + n*int64(t.length)
	return from, min(from+int64(t.length), t.tokens.Len())
}

// Targets counts the targets of some lanes.
func (t *Text) Targets(segment int64, lanes train.Lanes) (n int64) {
	for lane := lanes.First; lane < lanes.End(); lane++ {
		from, to := t.targets(segment, lane)
		n += to - from
	}
	return n
}

// Batch is what some lanes read in a segment: each lane's targets, behind their context.
type Batch struct {
	Tokens  []int32
	Windows []Window
}

// Window is a lane's part of a batch: Context tokens that are no targets, and then the targets.
type Window struct {
	Tokens  []int32
	Context int
}

// Targets is the number of targets.
func (w Window) Targets() int64 { return int64(len(w.Tokens) - w.Context) }

// Fill reads a batch, with at most so many tokens before each lane's first target.
func (t *Text) Fill(ctx context.Context, at train.Span, most int, into *Batch) error {
	into.Tokens, into.Windows = into.Tokens[:0], into.Windows[:0]
	for lane := at.Lanes.First; lane < at.Lanes.End(); lane++ {
		from, to := t.targets(at.Segment, lane)
		if from == to {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		before := min(from, int64(most))
		begin, n := len(into.Tokens), int(to-from+before)
		if cap(into.Tokens) < begin+n { // the windows keep the memory that they have
			into.Tokens = append(make([]int32, 0, begin+n*at.Lanes.Count), into.Tokens...)
		}
		into.Tokens = into.Tokens[:begin+n]
		read := into.Tokens[begin:]
		if err := t.tokens.ReadTokens(read, from-before); err != nil {
			return fmt.Errorf("segment %d, lane %d: %w", at.Segment, lane, err)
		}
		into.Windows = append(into.Windows, Window{read, int(before)})
	}
	return nil
}
