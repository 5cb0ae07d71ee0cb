// Package examples turns files of examples into rows of token ids and deals them to lanes.
//
// An example is a text with a label, a row of tokens with a label each, a tree, or two texts. Open
// reads the file, builds the vocabularies and the list of labels or takes those given, and writes
// the ids once, to a token file in corpus's cache folder. Only the lengths are held in memory, 8
// bytes an example. Batches says which example each lane reads in each segment; it is a pure
// function of its config and of the set.
//
// The package knows nothing of models, workers or storage credentials. It imports corpus and,
// outside of this module, gocloud.dev/blob.
package examples

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"gocloud.dev/blob"

	"rondo/corpus"
)

// Kind says what an example is.
type Kind string

const (
	// Labelled is a label and a text, from .tsv (label TAB text; a first line "label TAB text" or
	// "text TAB label" names the columns) or .jsonl (an object with the strings label and text).
	Labelled Kind = "labelled"
	// Tagged is a row of tokens with a label each, from .conll: a token and its label a line, in
	// the first and the last column, which spaces or tabs separate; an empty line ends a sentence,
	// and so does a line of -DOCSTART-.
	Tagged Kind = "tagged"
	// Pairs is a source and a target text, from .tsv or .txt (source TAB target; further columns
	// are ignored).
	Pairs Kind = "pairs"
	// Described is the number of a row of a table beside the file, from 0, and a text, from .tsv
	// (row TAB text). The number is the example's one token, and the text its targets.
	Described Kind = "described"
	// Stories is a story and a question about it, whose label is the answer, from .txt in the
	// format of the bAbI tasks (Weston et al. 2015, arXiv:1502.05698): a number and a sentence a
	// line, with a question, a tab and its answer; the number 1 begins another story. Each question
	// is an example, with the sentences before it. Stop ends each of these and the question.
	Stories Kind = "stories"
	// Trees is a tree with labels at its root and perhaps at other nodes, from .txt or .ptb, in the
	// brackets of the Penn Treebank, one a line: see ParseTree. The tokens are the nodes, each
	// behind its children: see Node.
	Trees Kind = "trees"
)

// Stop is the token that ends a sentence of a story: it must be one of Config.Reserved.
const Stop = "<stop>"

// hasTarget reports whether an example has a target text.
func (k Kind) hasTarget() bool { return k == Pairs || k == Described }

// Limits of a set of examples.
const (
	MaxExamples   = 1 << 28
	MaxLength     = corpus.MaxBPTT // tokens of an example
	MaxLabels     = 1 << 16
	maxLabelBytes = 256
)

// Config selects a file of examples. A .zip stands for the one file in it that has a format of the
// kind; files in it whose names start with a dot or an underscore do not count.
type Config struct {
	Source string // a path or the URL of an object, as in corpus.Config
	Kind   Kind
	// Tokenizer of Tagged and Trees has words, not normalised: tokens are taken as they are. Only
	// Labelled may have subwords.
	Tokenizer corpus.Tokenizer
	// SubwordFile and Subwords are as in corpus.Config.
	SubwordFile string
	Subwords    int
	// MinFrequency and Reserved are as in corpus.Config, for each vocabulary that is built.
	MinFrequency int64
	Reserved     []string
	MaxLength    int   // tokens; a longer text is an error
	MaxExamples  int64 // only the first ones are read; 0: all
	Rows         int64 // of the table, for Described
	Binary       bool  // Trees: see Binarize
	// Vocabulary and, of Pairs and Described, TargetVocabulary are those of an earlier run. Nil:
	// built.
	Vocabulary, TargetVocabulary *corpus.Vocabulary
	// Labels are those of an earlier run: another label is an error. Nil: found in the file, at
	// least two, and sorted by their bytes.
	Labels     []string
	CacheDir   string // as in corpus.Config
	OpenBucket func(ctx context.Context, url string) (*blob.Bucket, error)
}

func (c Config) validate() error {
	asWritten := c.Tokenizer.Unit == corpus.Word && c.Tokenizer.Normalize == corpus.None
	switch {
	case formatsOfKind(c.Kind) == nil:
		return fmt.Errorf("examples: kind %q is unknown", c.Kind)
	case c.Kind == Stories && c.Tokenizer.Unit != corpus.Word:
		return fmt.Errorf("--tokenizer %s: sentences of stories are words: give --tokenizer word",
			c.Tokenizer.Unit)
	case (c.Kind == Tagged || c.Kind == Trees) && !asWritten:
		return fmt.Errorf("--tokenizer %s, --normalize %s: tokens with labels are taken as they "+
			"are: give --tokenizer word --normalize none", c.Tokenizer.Unit, c.Tokenizer.Normalize)
	case c.Kind != Labelled && c.Tokenizer.Unit == corpus.Subword:
		return fmt.Errorf("--tokenizer: subwords are for texts with a label: give --tokenizer " +
			"word")
	case c.MaxLength < 1 || c.MaxLength > MaxLength:
		return fmt.Errorf("--max-length %d is not in [1, %d]", c.MaxLength, MaxLength)
	case c.MaxExamples < 0 || c.MaxExamples > MaxExamples:
		return fmt.Errorf("--max-examples %d is not in [0, %d]", c.MaxExamples, MaxExamples)
	case len(c.Labels) > MaxLabels:
		return fmt.Errorf("%d labels are more than %d", len(c.Labels), MaxLabels)
	case len(slices.Compact(slices.Sorted(slices.Values(c.Labels)))) < len(c.Labels):
		return fmt.Errorf("the labels %s name one twice", few(c.Labels))
	}
	return nil
}

// few quotes the first of some names.
func few(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%.60q and %d more", names[:most], len(names)-most)
	}
	return fmt.Sprintf("%.60q", names)
}

// Set is a set of examples, numbered from 0 in the order of the file. Its methods may be called
// concurrently.
type Set struct {
	of           *file
	rows         []uint32 // the examples of the file that this set has; nil: all
	first, count int64    // the part of rows, or of the file, that this set has
}

// content is what a token file of examples says of itself.
type content struct {
	Examples int64              `json:"examples"`
	Labels   []string           `json:"labels,omitempty"`
	Target   *corpus.Vocabulary `json:"target,omitempty"`
}

// file is a token file of examples: for each its tokens, then its targets, which are its label,
// labels or target tokens; after all of them, for each the number of its tokens and of its targets.
type file struct {
	head    content
	cfg     Config
	ids     *corpus.TokenFile
	lengths []int32 // [n, 2], of the tokens and of the targets
	starts  []int64 // where every startEvery-th example starts
}

const startEvery = 64

// Open reads the examples, or finds their token file in the cache; see corpus.Open. An error in the
// file is one line that names the file and the line.
func Open(ctx context.Context, cfg Config) (*Set, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	formats, err := formatsOf(cfg.Source, cfg.Kind)
	if err != nil {
		return nil, err
	}
	if cfg.SubwordFile != "" && cfg.Vocabulary == nil {
		read, err := corpus.ReadSubwords(ctx, corpus.Config{SubwordFile: cfg.SubwordFile,
			OpenBucket: cfg.OpenBucket})
		if err != nil {
			return nil, err
		}
		cfg.Vocabulary = corpus.OfSubwords(read)
	}
	depends := struct {
		Kind      Kind
		MaxLength int
		Examples  int64
		Labels    []string
		Target    string
		Rows      int64 `json:",omitempty"`
		Binary    bool  `json:",omitempty"`
	}{Kind: cfg.Kind, MaxLength: cfg.MaxLength, Examples: cfg.MaxExamples, Labels: cfg.Labels,
		Rows: cfg.Rows, Binary: cfg.Binary}
	if cfg.TargetVocabulary != nil {
		depends.Target = cfg.TargetVocabulary.Fingerprint()
	}
	ids, err := corpus.OpenTokens(ctx, corpus.Config{
		Source:       cfg.Source,
		Tokenizer:    cfg.Tokenizer,
		MinFrequency: cfg.MinFrequency,
		Reserved:     cfg.Reserved,
		Subwords:     cfg.Subwords,
		Vocabulary:   cfg.Vocabulary,
		CacheDir:     cfg.CacheDir,
		OpenBucket:   cfg.OpenBucket,
	}, depends, func(b *corpus.TokenBuild) error { return build(ctx, cfg, formats, b) })
	if err != nil {
		return nil, err
	}
	f := &file{cfg: cfg, ids: ids}
	if err := f.load(); err != nil {
		ids.Close()
		return nil, fmt.Errorf("corpus %s: %w", cfg.Source, err)
	}
	return &Set{of: f, count: f.head.Examples}, nil
}

// load reads the lengths from the end of the token file.
func (f *file) load() error {
	if err := json.Unmarshal(f.ids.Header().Extra, &f.head); err != nil {
		return fmt.Errorf("token file of examples: %w", err)
	}
	n := f.head.Examples
	end := f.ids.Len() - 2*n
	if n < 1 || n > MaxExamples || end < 0 {
		return fmt.Errorf("token file: %d ids cannot be %d examples", f.ids.Len(), n)
	}
	f.lengths = make([]int32, 2*n)
	if err := f.ids.ReadTokens(f.lengths, end); err != nil {
		return err
	}
	var start int64
	for row := range n {
		if row%startEvery == 0 {
			f.starts = append(f.starts, start)
		}
		start += f.size(row)
	}
	if start != end {
		return fmt.Errorf("token file: %d ids in examples, but their lengths add up to %d", end,
			start)
	}
	return nil
}

// size returns the number of ids of an example.
func (f *file) size(row int64) int64 {
	return int64(f.lengths[2*row]) + int64(f.lengths[2*row+1])
}

// row returns the place of example i in the file.
func (s *Set) row(i int64) int64 {
	if i < 0 || i >= s.count {
		panic(fmt.Sprintf("examples: example %d of %d", i, s.count))
	}
	if s.rows != nil {
		return int64(s.rows[s.first+i])
	}
	return s.first + i
}

// Len returns the number of examples, at least 1.
func (s *Set) Len() int64 { return s.count }

// Length returns the number of tokens of example i's text, at least 1.
func (s *Set) Length(i int64) int { return int(s.of.lengths[2*s.row(i)]) }

// Targets returns the number of example i's targets: 1 for a label, one per token for tags or per
// node with a label for trees, and the target text's tokens otherwise.
func (s *Set) Targets(i int64) int { return int(s.of.lengths[2*s.row(i)+1]) }

// Longest returns the largest Length of all examples.
func (s *Set) Longest() int {
	most := 0
	for i := range s.Len() {
		most = max(most, s.Length(i))
	}
	return most
}

// LongestTarget returns the largest number of Targets of all examples.
func (s *Set) LongestTarget() int {
	most := 0
	for i := range s.Len() {
		most = max(most, s.Targets(i))
	}
	return most
}

// Tokens returns the number of tokens of all texts.
func (s *Set) Tokens() (sum int64) {
	for i := range s.Len() {
		sum += int64(s.Length(i))
	}
	return sum
}

// Read reads example i: Length(i) token ids, and Targets(i) label numbers or ids of the target
// vocabulary. Of trees the token ids are for NodeOf. It does not allocate.
func (s *Set) Read(i int64, tokens, targets []int32) error {
	if len(tokens) != s.Length(i) || len(targets) != s.Targets(i) {
		panic(fmt.Sprintf("examples: room for %d tokens and %d targets; example %d has %d and %d",
			len(tokens), len(targets), i, s.Length(i), s.Targets(i)))
	}
	row := s.row(i)
	start := s.of.starts[row/startEvery]
	for before := row - row%startEvery; before < row; before++ {
		start += s.of.size(before)
	}
	if err := s.of.ids.ReadTokens(tokens, start); err != nil {
		return err
	}
	return s.of.ids.ReadTokens(targets, start+int64(len(tokens)))
}

// Vocabulary returns the vocabulary of the texts.
func (s *Set) Vocabulary() *corpus.Vocabulary { return s.of.ids.Header().Vocabulary }

// TargetVocabulary returns the vocabulary of the target texts; nil for kinds with labels.
func (s *Set) TargetVocabulary() *corpus.Vocabulary { return s.of.head.Target }

// Labels returns the labels in the order of their numbers; nil for kinds with target texts.
func (s *Set) Labels() []string { return slices.Clone(s.of.head.Labels) }

// Close releases the token file of this set and of all that were made from it.
func (s *Set) Close() error { return s.of.ids.Close() }

// Range returns the examples [first, first+count) as a set.
func (s *Set) Range(first, count int64) *Set {
	if first < 0 || count < 1 || first > s.count-count {
		panic(fmt.Sprintf("examples: %d examples from %d on, of %d", count, first, s.count))
	}
	return &Set{of: s.of, rows: s.rows, first: s.first + first, count: count}
}

// splitKey makes the hashes of Split other than those that shuffle.
const splitKey = 0x68656C646F7574

// Split returns the examples to train on and those held out (--validation-fraction, in (0, 1)). A
// hash of an example's place in the file decides, whatever the seed and the number of workers. So a
// file that is sorted by label is split evenly, and one that grows keeps what is held out. Split
// fails if a part has no example.
func (s *Set) Split(fraction float64) (train, held *Set, err error) {
	if !(fraction > 0 && fraction < 1) {
		return nil, nil, fmt.Errorf("--validation-fraction %v is not in (0, 1)", fraction)
	}
	below := uint64(math.Ldexp(fraction, 64))
	var rows [2][]uint32
	for i := range s.count {
		row, part := s.row(i), 0
		if corpus.Hash3(splitKey, uint64(row), 0) < below {
			part = 1
		}
		rows[part] = append(rows[part], uint32(row))
	}
	if len(rows[0]) == 0 || len(rows[1]) == 0 {
		return nil, nil, fmt.Errorf("--validation-fraction %v of %d examples holds out %d: give "+
			"another fraction, or more examples", fraction, s.count, len(rows[1]))
	}
	part := func(rows []uint32) *Set {
		return &Set{of: s.of, rows: rows, count: int64(len(rows))}
	}
	return part(rows[0]), part(rows[1]), nil
}

// Fingerprint is a SHA-256, in hexadecimal, of the tokenizer, the vocabularies, the labels, and the
// examples in their order. It is equal on two machines exactly when their sets are equal.
func (s *Set) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "rondo examples 1\n%s %s %s\n%s\n", s.of.cfg.Kind, s.of.cfg.Tokenizer.Unit,
		s.of.cfg.Tokenizer.Normalize, s.Vocabulary().Fingerprint())
	if s.of.head.Target != nil {
		fmt.Fprintln(h, s.of.head.Target.Fingerprint())
	}
	fmt.Fprintf(h, "%q\n%x %d\n", s.of.head.Labels, s.of.ids.Digest(), s.of.head.Examples)
	block := make([]byte, 0, 1<<16)
	for i := range s.count {
		block = binary.LittleEndian.AppendUint32(block, uint32(s.row(i)))
		if len(block) == cap(block) || i == s.count-1 {
			h.Write(block)
			block = block[:0]
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
