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
	"strconv"

	"rondo/corpus"
)

// errEnough ends a pass at Config.MaxExamples.
var errEnough = errors.New("enough examples")

// builder writes a token file in two passes over the text. The first checks every row and counts
// tokens and labels; the second encodes them. A pass before them learns subwords.
type builder struct {
	cfg          Config
	formats      formats
	vocabularies [2]*corpus.Vocabulary // of the texts, of the targets
	labels       map[string]int32
	examples     int64
	longest      int
	nodes        []Node // of a tree
	node         Node   // the next token of Trees
}

func build(ctx context.Context, cfg Config, f formats, to *corpus.TokenBuild) error {
	b := &builder{cfg: cfg, formats: f, labels: map[string]int32{}}
	b.vocabularies[0] = cfg.Vocabulary
	if cfg.Kind.hasTarget() {
		b.vocabularies[1] = cfg.TargetVocabulary
	}
	if cfg.Kind == Described { // rows are no tokens of a vocabulary
		none, err := corpus.NewVocabulary([]string{corpus.Unknown})
		if err != nil {
			return err
		}
		b.vocabularies[0] = none
	}
	for number, label := range cfg.Labels {
		b.labels[label] = int32(number)
	}
	passes := []func(io.Reader) error{
		func(r io.Reader) error { return b.survey(ctx, r, to.Scratch) },
		func(r io.Reader) error { return b.encode(ctx, r, to) },
	}
	if cfg.Tokenizer.Unit == corpus.Subword && cfg.Vocabulary == nil {
		passes = slices.Insert(passes, 0, func(r io.Reader) error {
			return b.learn(ctx, r, to.Scratch)
		})
	}
	return to.Read(ctx, passes...)
}

func ignore([]byte) error { return nil }

// learn is a pass before the first, which makes a vocabulary of subwords.
func (b *builder) learn(ctx context.Context, r io.Reader, scratch string) error {
	words := corpus.NewCounter(scratch)
	defer words.Close()
	err := b.read(ctx, r, [2]func([]byte) error{words.Add, ignore},
		func([2]int) error { return nil })
	if err != nil {
		return err
	}
	b.vocabularies[0], err = words.Subwords(ctx, b.cfg.Subwords, b.cfg.MinFrequency)
	return err
}

// survey is the first pass.
func (b *builder) survey(ctx context.Context, r io.Reader, scratch string) error {
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
	if use0 := use[0]; b.cfg.Kind == Trees {
		use[0] = func(word []byte) error {
			if b.node.Children > 0 {
				return nil
			}
			return use0(word)
		}
	}
	err := b.read(ctx, r, use, func(counts [2]int) error {
		b.examples++
		b.longest = max(b.longest, counts[0], counts[1])
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
	if b.cfg.Kind.hasTarget() {
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
	if b.cfg.Kind.hasTarget() || len(b.cfg.Labels) > 0 {
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
	if b.cfg.Kind == Trees {
		limit = max(limit, nodeLimit(b.vocabularies[0].Len(), b.longest))
	}
	if b.cfg.Kind.hasTarget() {
		limit = max(limit, head.Target.Len(), int(b.cfg.Rows))
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
	var targets []int32 // of the row, whose tokens come first
	use := [2]func([]byte) error{
		func(token []byte) error { return w.Put(b.vocabularies[0].ID(string(token))) },
		func(label []byte) error {
			targets = append(targets, b.labels[string(label)])
			return nil
		},
	}
	if b.cfg.Kind == Described {
		use[0] = func(row []byte) error {
			number, err := b.row(row)
			if err != nil {
				return err
			}
			return w.Put(number)
		}
	}
	if b.cfg.Kind == Trees {
		use[0] = func([]byte) error { return w.Put(b.node.id(b.vocabularies[0])) }
	}
	if b.cfg.Kind.hasTarget() {
		use[1] = func(token []byte) error {
			targets = append(targets, head.Target.ID(string(token)))
			return nil
		}
	}
	var lengths []int32
	err = b.read(ctx, r, use, func(counts [2]int) error {
		lengths = append(lengths, int32(counts[0]), int32(counts[1]))
		err := putAll(w, targets)
		targets = targets[:0]
		return err
	})
	if err != nil {
		return err
	}
	if err := putAll(w, lengths); err != nil {
		return err
	}
	return w.Finish()
}

func putAll(w *corpus.TokenWriter, ids []int32) error {
	for _, id := range ids {
		if err := w.Put(id); err != nil {
			return err
		}
	}
	return nil
}

// read passes over the rows once. It calls use[0] with each token of a row, use[1] with its label,
// labels or target tokens, and then done with the number of both.
func (b *builder) read(
	ctx context.Context, r io.Reader, use [2]func([]byte) error, done func(counts [2]int) error,
) error {
	p := &pass{builder: b, use: use, done: done}
	for side := range p.split {
		use := func(token []byte) error { return p.token(side, token) }
		var err error
		if v := b.vocabularies[side]; v != nil {
			p.split[side], err = v.NewSplitter(b.cfg.Tokenizer, use)
		} else {
			p.split[side], err = b.cfg.Tokenizer.NewSplitter(use)
		}
		if err != nil {
			return err
		}
	}
	err := b.formats.parse(ctx, b.cfg.Source, r, p)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// pass takes the rows of one reading of the file, and checks them.
type pass struct {
	*builder
	use    [2]func(token []byte) error
	split  [2]*corpus.Splitter
	done   func(counts [2]int) error
	counts [2]int // of the row
	rows   int64
}

func (p *pass) text(text []byte) error {
	switch p.cfg.Kind {
	case Tagged:
		return p.token(0, text)
	case Described:
		if _, err := p.row(text); err != nil {
			return err
		}
		return p.token(0, text)
	case Trees:
		return p.tree(text)
	case Stories:
		for sentence := range bytes.SplitSeq(text, []byte("\n")) {
			if err := p.sentence(sentence); err != nil {
				return err
			}
		}
		return nil
	}
	return p.split[0].Split(text)
}

// sentence takes a sentence of a story.
func (p *pass) sentence(text []byte) error {
	before := p.counts[0]
	if err := p.split[0].Split(text); err != nil {
		return err
	}
	if p.counts[0] == before {
		return fmt.Errorf("the sentence %.40q has no word: remove it", text)
	}
	return p.token(0, []byte(Stop))
}

// tree takes the nodes of a tree and their labels.
func (p *pass) tree(text []byte) (err error) {
	if p.nodes, err = ParseTree(text, p.nodes[:0]); err != nil {
		return err
	}
	if p.nodes[len(p.nodes)-1].Label == nil {
		return errors.New("the root has no label: write it behind the first bracket")
	}
	if p.cfg.Binary {
		p.nodes = Binarize(p.nodes)
	}
	for _, node := range p.nodes {
		p.node = node
		if err := p.token(0, node.Word); err != nil {
			return err
		}
		if node.Label != nil {
			if err := p.token(1, node.Label); err != nil {
				return err
			}
		}
	}
	return nil
}

// row is the number of a row of the table.
func (b *builder) row(text []byte) (int32, error) {
	row, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil || row < 0 || row >= b.cfg.Rows {
		return 0, fmt.Errorf("%.40q is not the number of a row: there are %d, from 0", text,
			b.cfg.Rows)
	}
	return int32(row), nil
}

func (p *pass) other(other []byte) error {
	if p.cfg.Kind.hasTarget() {
		return p.split[1].Split(other)
	}
	return p.token(1, other)
}

func (p *pass) token(side int, token []byte) error {
	if p.counts[side] == p.cfg.MaxLength {
		return fmt.Errorf("more than --max-length %d tokens: raise it, or shorten the text",
			p.cfg.MaxLength)
	}
	p.counts[side]++
	return p.use[side](token)
}

func (p *pass) end() error {
	for side := range p.sides() {
		if p.counts[side] == 0 {
			return fmt.Errorf("a text has no token (--tokenizer %s, --normalize %s): remove it",
				p.cfg.Tokenizer.Unit, p.cfg.Tokenizer.Normalize)
		}
	}
	if p.rows == MaxExamples {
		return fmt.Errorf("more than %d examples: give --max-examples", MaxExamples)
	}
	p.rows++
	err := p.done(p.counts)
	p.counts = [2]int{}
	if err == nil && p.rows == p.cfg.MaxExamples {
		err = errEnough
	}
	return err
}
