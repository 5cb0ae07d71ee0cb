package examples

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"rondo/corpus"
)

// errEnough ends a pass at Config.MaxExamples.
var errEnough = errors.New("enough examples")

// builder writes a token file in two passes over the text. The first checks every row and counts
// tokens and labels; the second encodes them.
type builder struct {
	cfg          Config
	formats      formats
	vocabularies [2]*corpus.Vocabulary // of the texts, of the targets
	labels       map[string]int32
	examples     int64
	longest      int
}

func build(ctx context.Context, cfg Config, f formats, to *corpus.TokenBuild) error {
	b := &builder{cfg: cfg, formats: f, labels: map[string]int32{}}
	b.vocabularies[0] = cfg.Vocabulary
	if cfg.Kind == Pairs {
		b.vocabularies[1] = cfg.TargetVocabulary
	}
	for number, label := range cfg.Labels {
		b.labels[label] = int32(number)
	}
	return to.Read(ctx,
		func(r io.Reader) error { return b.survey(ctx, r, to.Scratch) },
		func(r io.Reader) error { return b.encode(ctx, r, to) })
}

// survey is the first pass.
func (b *builder) survey(ctx context.Context, r io.Reader, scratch string) error {
	ignore := func([]byte) error { return nil }
	use := [2]func([]byte) error{ignore, b.addLabel}
	var counters [2]*corpus.Counter
	for side := range b.sides() {
		use[side] = ignore
		if b.vocabularies[side] == nil {
			counters[side] = corpus.NewCounter(scratch)
			defer counters[side].Close()
			use[side] = counters[side].Add
		}
	}
	err := b.pass(ctx, r, use, func(length, targets int) error {
		b.examples++
		b.longest = max(b.longest, length, targets)
		return nil
	})
	if err != nil {
		return err
	}
	if b.examples == 0 {
		return errors.New("it has no example: give a file with at least one")
	}
	for side, counter := range counters {
		if counter == nil {
			continue
		}
		v, err := counter.Vocabulary(b.cfg.MinFrequency, b.cfg.Reserved)
		if err != nil {
			return err
		}
		b.vocabularies[side] = v
	}
	return b.finishLabels()
}

// sides is the number of texts that an example has.
func (b *builder) sides() int {
	if b.cfg.Kind == Pairs {
		return 2
	}
	return 1
}

// addLabel enters a label, or fails if it is not one of those given.
func (b *builder) addLabel(label []byte) error {
	if _, ok := b.labels[string(label)]; ok {
		return nil
	}
	switch {
	case len(b.cfg.Labels) > 0:
		return fmt.Errorf("the label %.60q is unknown: the labels are %s", label,
			few(b.cfg.Labels))
	case len(label) == 0:
		return errors.New("the label is empty")
	case len(label) > maxLabelBytes:
		return fmt.Errorf("a label of %d bytes, more than %d: is it the text?", len(label),
			maxLabelBytes)
	case len(b.labels) == MaxLabels:
		return fmt.Errorf("more than %d labels: is it the text that stands in their place?",
			MaxLabels)
	}
	b.labels[string(label)] = 0
	return nil
}

// finishLabels numbers the labels that were found.
func (b *builder) finishLabels() error {
	if b.cfg.Kind == Pairs || len(b.cfg.Labels) > 0 {
		return nil
	}
	sorted := slices.Sorted(maps.Keys(b.labels))
	if len(sorted) < 2 {
		return fmt.Errorf("all examples have the label %q, so there is nothing to learn: give "+
			"examples of at least two labels", sorted[0])
	}
	for number, label := range sorted {
		b.labels[label] = int32(number)
	}
	return nil
}

// encode is the second pass.
func (b *builder) encode(ctx context.Context, r io.Reader, to *corpus.TokenBuild) error {
	head := content{Examples: b.examples, Target: b.vocabularies[1]}
	limit := max(b.longest+1, len(b.labels))
	if b.cfg.Kind == Pairs {
		limit = max(limit, head.Target.Len())
	} else {
		head.Labels = make([]string, len(b.labels))
		for label, number := range b.labels {
			head.Labels[number] = label
		}
	}
	extra, err := json.Marshal(head)
	if err != nil {
		return err
	}
	w, err := to.Writer(corpus.Header{Vocabulary: b.vocabularies[0], Limit: limit, Extra: extra})
	if err != nil {
		return err
	}
	// A row's tokens come before its targets: both are written as they are found.
	use := [2]func([]byte) error{
		func(token []byte) error { return w.Put(b.vocabularies[0].ID(string(token))) },
		func(label []byte) error { return w.Put(b.labels[string(label)]) },
	}
	if b.cfg.Kind == Pairs {
		use[1] = func(token []byte) error { return w.Put(head.Target.ID(string(token))) }
	}
	var lengths [2][]int32
	err = b.pass(ctx, r, use, func(length, targets int) error {
		lengths[0] = append(lengths[0], int32(length))
		lengths[1] = append(lengths[1], int32(targets))
		return nil
	})
	if err != nil {
		return err
	}
	for side := range b.sides() {
		for _, length := range lengths[side] {
			if err := w.Put(length); err != nil {
				return err
			}
		}
	}
	return w.Finish()
}

// pass reads the rows. It calls use[0] with each token of a row, then use[1] with its label, labels
// or target tokens, then done with the number of both.
func (b *builder) pass(
	ctx context.Context, r io.Reader, use [2]func([]byte) error,
	done func(length, targets int) error,
) error {
	var counts [2]int
	var split [2]*corpus.Splitter
	for side := range counts {
		text := use[side]
		use[side] = func(token []byte) error {
			counts[side]++
			return text(token)
		}
		var err error
		if split[side], err = b.cfg.Tokenizer.NewSplitter(use[side]); err != nil {
			return err
		}
	}
	var rows int64
	err := b.formats.parse(ctx, b.cfg.Source, r, b.cfg.MaxLength, func(r row) error {
		if rows == MaxExamples {
			return fmt.Errorf("line %d is example %d: give --max-examples %d", r.line, rows+1,
				MaxExamples)
		}
		rows++
		counts = [2]int{}
		if err := b.split(r, use, split); err != nil {
			return err
		}
		for side := range b.sides() {
			if counts[side] == 0 {
				return fmt.Errorf("line %d: the text %.40q has no token (--tokenizer %s, "+
					"--normalize %s)", r.line, [][]byte{r.text, r.other}[side],
					b.cfg.Tokenizer.Unit, b.cfg.Tokenizer.Normalize)
			}
			if counts[side] > b.cfg.MaxLength {
				return fmt.Errorf("line %d has a text of %d tokens, more than --max-length %d: "+
					"raise it, or shorten the text", r.line, counts[side], b.cfg.MaxLength)
			}
		}
		if err := done(counts[0], counts[1]); err != nil {
			return err
		}
		if rows == b.cfg.MaxExamples {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// split calls use with the parts of a row. Errors name the line.
func (b *builder) split(
	r row, use [2]func([]byte) error, split [2]*corpus.Splitter,
) error {
	at := func(line int, err error) error {
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		return nil
	}
	if b.cfg.Kind != Tagged {
		if err := split[0].Split(r.text); err != nil {
			return at(r.line, err)
		}
		if b.cfg.Kind == Pairs {
			return at(r.line, split[1].Split(r.other))
		}
		return at(r.line, use[1](r.other))
	}
	for side := range use {
		line := r.line
		for text := range bytes.Lines(r.text) {
			token, label, _ := bytes.Cut(text[:len(text)-1], []byte("\t"))
			if err := use[side]([][]byte{token, label}[side]); err != nil {
				return at(line, err)
			}
			line++
		}
	}
	return nil
}
