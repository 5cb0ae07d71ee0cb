// Package fill fills blanks in a text. A network that reads a segment in both directions, with some
// tokens replaced by Blank, predicts these tokens (Taylor 1953, "Cloze procedure"; Dive into Deep
// Learning, "Bidirectional Recurrent Neural Networks"; the masks are those of Devlin et al. 2018,
// arXiv:1810.04805, but that all of them are Blank). It trains as task/label does; lanes carry no
// state from segment to segment, because the backward direction could not.
//
// Without blanks, the targets are the next tokens. Then a network of both directions sees them.
//
// Of this module it may import corpus, model, task/label and train.
package fill

import (
	"context"
	"fmt"
	"math"
	"slices"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/label"
	"rondo/train"
)

// Blank is the token that the network reads in place of one that it is to predict.
const Blank = "<blank>"

// Blanks says which tokens of a segment are blank. The zero value is none.
type Blanks struct {
	Token int32   // the id of Blank; 0: none
	Share float64 // of a segment's tokens, rounded; at least one is blank
	Seed  uint64
}

// purpose makes the hashes of Blanks other than those of corpus.Sampler.
const purpose = 0x626c616e6b

// count is the number of targets in a segment of so many tokens.
func (b Blanks) count(tokens int) int {
	if b.Token == 0 {
		return tokens
	}
	return b.Count(tokens)
}

// Count is the number of blanks in a segment of so many tokens.
func (b Blanks) Count(tokens int) int {
	return min(tokens, max(1, int(math.Round(b.Share*float64(tokens)))))
}

// TextConfig is a text and how lanes read it.
type TextConfig struct {
	Tokens corpus.Tokens // at least two
	BPTT   int           // T, tokens of a segment
	Lanes  int           // G
	// Sampler deals segments to lanes. Nil deals each once, in order, for an evaluation: segment s
	// of lane l is number s*G+l of the text, whatever G is.
	Sampler *corpus.Sampler
	Blanks  Blanks
}

// Text is a text as label.Data, with blanks for a network with model.PoolPlaces, and without for
// one with PoolNone. Segment s of lane l has the blanks that its seed and s*G+l choose.
type Text struct {
	cfg    TextConfig
	window []int32 // T+1 tokens
}

// NewText makes the data.
func NewText(c TextConfig) *Text { return &Text{cfg: c, window: make([]int32, c.BPTT+1)} }

// Longest implements label.Data.
func (t *Text) Longest() int { return t.cfg.BPTT }

// SegmentsPerEpoch implements label.Data.
func (t *Text) SegmentsPerEpoch() int64 {
	if t.cfg.Sampler != nil {
		return t.cfg.Sampler.SegmentsPerEpoch()
	}
	n := int64(t.cfg.BPTT) * int64(t.cfg.Lanes)
	return (t.cfg.Tokens.Len() - 1 + n - 1) / n
}

// number is that of a lane's segment in all of the text's or, in training, of all epochs'.
func (t *Text) number(segment int64, lane int) int64 {
	return segment*int64(t.cfg.Lanes) + int64(lane)
}

// at returns where a lane's segment begins, and its tokens. The token after it is in the text too.
func (t *Text) at(segment int64, lane int) (offset int64, tokens int) {
	T := int64(t.cfg.BPTT)
	if t.cfg.Sampler != nil {
		return t.cfg.Sampler.Offset(segment, lane), t.cfg.BPTT
	}
	offset = t.number(segment, lane) * T
	return offset, int(max(0, min(T, t.cfg.Tokens.Len()-1-offset)))
}

// sum adds up a function of the tokens of these lanes' segments.
func (t *Text) sum(segment int64, lanes train.Lanes, of func(tokens int) int) (sum int64) {
	for lane := lanes.First; lane < lanes.End(); lane++ {
		_, tokens := t.at(segment, lane)
		sum += int64(of(tokens))
	}
	return sum
}

// Targets implements label.Data.
func (t *Text) Targets(segment int64, lanes train.Lanes) int64 {
	return t.sum(segment, lanes, t.cfg.Blanks.count)
}

// Tokens implements label.Data.
func (t *Text) Tokens(segment int64, lanes train.Lanes) int64 {
	return t.sum(segment, lanes, func(tokens int) int { return tokens })
}

// Fill implements label.Data. read are the tokens of the text.
func (t *Text) Fill(
	_ context.Context, at train.Span, in *model.Examples,
) (read []int32, err error) {
	_, steps := t.at(at.Segment, 0) // the longest of all lanes
	rows := steps
	if t.cfg.Blanks.Token != 0 {
		rows = t.cfg.Blanks.Count(t.cfg.BPTT)
		in.Places = slices.Repeat([]int32{-1}, rows*len(in.Lengths))
	}
	label.Begin(in, steps, rows)
	for b := range in.Lengths {
		lane := at.Lanes.First + b
		offset, n := t.at(at.Segment, lane)
		if n == 0 {
			continue
		}
		in.Lengths[b] = int32(n)
		if err := t.cfg.Tokens.ReadTokens(t.window[:n+1], offset); err != nil {
			return nil, fmt.Errorf("segment %d, lane %d: %w", at.Segment, lane, err)
		}
		for i := range n {
			place := i*len(in.Lengths) + b
			in.Inputs[place] = t.window[i]
			if t.cfg.Blanks.Token == 0 {
				in.Targets[place] = t.window[i+1]
			}
		}
	}
	read = slices.Clone(in.Inputs)
	t.hide(at, in)
	return read, nil
}

// hide makes the blanks of a span.
func (t *Text) hide(at train.Span, in *model.Examples) {
	blanks := t.cfg.Blanks
	if blanks.Token == 0 {
		return
	}
	for b, n := range in.Lengths {
		if n == 0 {
			continue
		}
		key := uint64(t.number(at.Segment, at.Lanes.First+b))
		order := corpus.NewPermutation(uint64(n), corpus.Hash3(blanks.Seed, key, purpose))
		for i := range blanks.count(int(n)) {
			step := int(order.At(uint64(i)))
			row, place := i*len(in.Lengths)+b, step*len(in.Lengths)+b
			in.Places[row] = int32(step)
			in.Targets[row], in.Inputs[place] = in.Inputs[place], blanks.Token
		}
	}
}

// Counter counts the targets and how many of them are predicted. It implements label.Counter.
type Counter struct{}

// The counts.
const (
	targets = iota
	correct
	counters
)

// Counters implements label.Counter.
func (Counter) Counters() int { return counters }

// Count implements label.Counter.
func (Counter) Count(counts []int64, predicted, right []int32) {
	for i, id := range right {
		if id == corpus.Padding {
			continue
		}
		counts[targets]++
		if predicted[i] == id {
			counts[correct]++
		}
	}
}

// Metrics implements label.Counter: accuracy.
func (Counter) Metrics(counts []int64) []train.Metric {
	return []train.Metric{{Name: "accuracy",
		Value: float64(counts[correct]) / float64(counts[targets])}}
}
