package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"rondo/checkpoint/bucket"
	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/fill"
	"rondo/task/hmm"
	"rondo/task/lm"
	"rondo/task/mlp"
	"rondo/task/ngram"
	"rondo/telemetry"
)

// Text is the Data of a language model. hidden makes other tasks of it.
type Text struct {
	segmentData
	corpus    *corpus.Corpus
	evaluated *corpus.Corpus // --eval-corpus, or nil
}

// Tokenizer is the spec's way to split text.
func Tokenizer(spec *rondov1.JobSpec) corpus.Tokenizer {
	unit := corpus.Unit(spec.Tokenizer)
	if unit != corpus.Char && unit != corpus.Word {
		unit = corpus.Subword
	}
	return corpus.Tokenizer{Unit: unit,
		Normalize: corpus.Normalization(spec.Normalize), Ends: corpus.Ends(spec.Eos)}
}

// OpenCorpus opens the job's training text; with a nil vocabulary it builds one.
func OpenCorpus(
	ctx context.Context, spec *rondov1.JobSpec, vocabulary *corpus.Vocabulary,
) (*corpus.Corpus, error) {
	cfg := corpusConfig(spec, spec.Corpus)
	cfg.MaxTokens, cfg.Vocabulary = spec.MaxTokens, vocabulary
	cfg.ShuffleDocuments, cfg.Seed = spec.ShuffleDocuments, spec.Seed
	return openCorpus(ctx, cfg)
}

// OpenText opens another text as a whole, tokenised like the job's, with the given vocabulary.
func OpenText(
	ctx context.Context, source string, spec *rondov1.JobSpec, vocabulary *corpus.Vocabulary,
) (*corpus.Corpus, error) {
	cfg := corpusConfig(spec, source)
	cfg.Vocabulary = vocabulary
	return openCorpus(ctx, cfg)
}

// corpusConfig says how the spec splits a text.
func corpusConfig(spec *rondov1.JobSpec, source string) corpus.Config {
	c := corpus.Config{
		Source:       source,
		Tokenizer:    Tokenizer(spec),
		TextField:    spec.TextField,
		MinFrequency: spec.MinFrequency,
		SubwordFile:  jobspec.TokenizerFile(spec),
		Subwords:     int(spec.VocabularySize),
		OpenBucket:   bucket.Open,
	}
	if spec.Task == task.Fill {
		c.Reserved = []string{fill.Blank}
	}
	return c
}

func openCorpus(ctx context.Context, cfg corpus.Config) (*corpus.Corpus, error) {
	c, err := corpus.Open(ctx, cfg)
	if err != nil && ctx.Err() == nil && !transient(err) {
		return nil, app.Usage(err)
	}
	return c, err
}

// openText opens the job's corpus, and its evaluation text if it has one.
func openText(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	text, err := OpenCorpus(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	d := &Text{segmentData: segmentData{spec: spec}, corpus: text}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Text) open(ctx context.Context) (err error) {
	spec := d.spec
	if d.Vocabulary().Len() < 2 {
		return app.Usagef("corpus %s: every token is rarer than --min-frequency %d: lower it",
			spec.Corpus, spec.MinFrequency)
	}
	var others corpus.Tokens
	d.identity = fmt.Sprintf("%s %v", d.corpus.Fingerprint(), spec.ValidationFraction)
	if spec.EvalCorpus != "" {
		d.evaluated, err = OpenText(ctx, spec.EvalCorpus, spec, d.Vocabulary())
		if err != nil {
			return fmt.Errorf("--eval-corpus: %w", err)
		}
		others, d.identity = d.evaluated.Tokens(), d.evaluated.Fingerprint()
	}
	hasFields := d.corpus.HasFields() || d.evaluated != nil && d.evaluated.HasFields()
	if cmp.Or(spec.TextField, corpus.DefaultField) != corpus.DefaultField && !hasFields {
		return app.Usagef("--text-field %s is for a .jsonl or .parquet, and the corpus has none: "+
			"leave it out", spec.TextField)
	}
	if err := d.divide(d.corpus.Tokens(), others, "text", "tokens"); err != nil {
		return err
	}
	_, err = d.writer()
	return err
}

// Vocabulary implements Data.
func (d *Text) Vocabulary() *corpus.Vocabulary { return d.corpus.Vocabulary() }

// Outputs implements Data: tokens of the vocabulary.
func (d *Text) Outputs() []string { return nil }

// Fingerprint implements Data.
func (d *Text) Fingerprint() string { return d.corpus.Fingerprint() }

// Files are the files of --corpus.
func (d *Text) Files() corpus.Files { return d.corpus.Files() }

// Extent implements Data.
func (d *Text) Extent() Extent { return Extent{Tokens: d.Vocabulary().Len()} }

// languageNetwork is the network of a language model.
func languageNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := ModelConfig(spec, data.Tokens)
	if err != nil {
		return Network{}, err
	}
	n := networkOfSegments(spec, c)
	n.Tokens, n.TableByColumn = c.Vocab, c.Embed == 0
	if !c.TieWeights { // tied weights are also the output layer's, which reads all of them
		n.Table = c.LookupWeight()
	}
	return n, nil
}

// networkOfSegments is a network that reads segments of --bptt tokens or rows.
func networkOfSegments(spec *rondov1.JobSpec, c model.Config) Network {
	return Network{Tensors: model.Layout(c), StateSize: c.StateSize(),
		make: func(on compute.Device) (weights, error) { return model.New(c, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			for _, T := range corpus.SegmentLengths(int(spec.Bptt), sampling(spec)) {
				work = work.And(c.SegmentSize(on, T, lanes))
			}
			evaluation = c.EvaluatorSize(on, int(spec.Bptt), lanes)
			if spec.SampleTokens > 0 {
				work = work.And(c.GeneratorSize(on))
			}
			if spec.EvalCorpus != "" || spec.ValidationFraction > 0 {
				work = work.And(evaluation)
			}
			return work, evaluation
		}}
}

// NewTask implements Data: the language model.
func (d *Text) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	config, err := ModelConfig(d.spec, d.Vocabulary().Len())
	if err != nil {
		return nil, err
	}
	reads, err := d.config(ledger)
	if err != nil {
		return nil, err
	}
	if reads.Writer, err = d.writer(); err != nil {
		return nil, err
	}
	config.GradientTail = tail
	m, err := model.New(config, device)
	if err != nil {
		return nil, err
	}
	task, err := lm.New(m, reads)
	if err != nil {
		m.Close()
		return nil, app.Usage(err)
	}
	t := &Task{Task: task, close: m.Close}
	if reads.Writer != nil {
		t.Sample = task.Sample
	}
	return t, nil
}

// writer makes the writer of the job's samples; nil: the job has none.
func (d *Text) writer() (*lm.Writer, error) {
	if d.spec.SampleTokens == 0 {
		return nil, nil
	}
	w, err := lm.NewWriter(d.Vocabulary(), Tokenizer(d.spec), d.spec.SamplePrefix,
		int(d.spec.SampleTokens), model.Sampling{Temperature: d.spec.SampleTemperature,
			Greedy: d.spec.SampleTemperature == 0, Seed: d.spec.Seed})
	if err != nil {
		return nil, app.Usage(fmt.Errorf("--sample-prefix: %w", err))
	}
	return w, nil
}

// Close releases the token files.
func (d *Text) Close() error {
	err := d.corpus.Close()
	if d.evaluated != nil {
		err = errors.Join(err, d.evaluated.Close())
	}
	return err
}

// Texts continues texts with a language model.
type Texts struct {
	trained   *Trained
	generator lm.Generator
}

// maxTogether bounds the texts that are continued side by side.
const maxTogether = 1024

// Texts makes a generator of texts. It continues this many at a time; a model that is not
// recurrent continues one. Close frees it.
func (t *Trained) Texts(together int) (*Texts, error) {
	if together < 1 || together > maxTogether {
		return nil, app.Usagef("--lanes %d is not in [1, %d]", together, maxTogether)
	}
	x := &Texts{trained: t}
	var err error
	switch network := t.weights.(type) {
	case *model.Labeller:
		x.generator, err = network.NewGenerator(int(t.Spec.Bptt))
	case *ngram.Model:
		x.generator, err = network.NewGenerator()
	case *hmm.Model:
		x.generator, err = network.NewGenerator()
	case *model.Window:
		x.generator, err = mlp.NewGenerator(network)
	case *model.Model:
		x.generator, err = network.NewGenerator(together)
		return x, err
	}
	x.generator = &oneAtATime{x.generator, make(chan struct{}, 1)}
	return x, err
}

// undelivered bounds the tokens that wait for a slow reader of oneAtATime's.
const undelivered = 4096

// oneAtATime lets concurrent calls of Generate wait for each other, but not for the readers of each
// other's tokens.
type oneAtATime struct {
	lm.Generator
	turn chan struct{} // holds one element during a call
}

// Generate implements lm.Generator.
func (o *oneAtATime) Generate(
	ctx context.Context, prefix []int32, n int, how model.Sampling,
) (text []int32, err error) {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type chosen struct {
		token          int32
		logProbability float64
	}
	ready, each := make(chan chosen, min(n, undelivered)), how.Each
	if each != nil {
		how.Each = func(token int32, logProbability float64) error {
			select {
			case ready <- chosen{token, logProbability}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	go func() { // ends before this call does, which reads until ready is closed
		defer close(ready)
		text, err = o.Generator.Generate(ctx, prefix, n, how)
		<-o.turn
	}()
	var refused error
	for c := range ready {
		if refused == nil {
			if refused = each(c.token, c.logProbability); refused != nil {
				cancel()
			}
		}
	}
	if refused != nil {
		return text, refused
	}
	return text, err
}

// Read reads the prefix of texts. What it returns may be called concurrently.
func (x *Texts) Read(prefix string) (lm.Continue, error) {
	w, err := lm.NewWriter(x.trained.Vocabulary, Tokenizer(x.trained.Spec), prefix, 0,
		model.Sampling{})
	if err != nil {
		return nil, app.Usage(fmt.Errorf("the text to continue: %w", err))
	}
	return func(
		ctx context.Context, tokens int, how model.Sampling, each func(lm.Piece) error,
	) error {
		return w.With(tokens, how).Stream(ctx, x.generator, each)
	}, nil
}

// Close frees the generator, not the model.
func (x *Texts) Close() { x.generator.Close() }

// openText opens a text to evaluate on.
func (t *Trained) openText(ctx context.Context, source string) (*corpus.Corpus, error) {
	text, err := OpenText(ctx, source, t.Spec, t.Vocabulary)
	if err != nil {
		return nil, err
	}
	if n := text.Tokens().Len(); n < 2 {
		return nil, errors.Join(text.Close(), app.Usagef("corpus %s has %d tokens, and 2 are "+
			"needed: give a longer text", source, n))
	}
	return text, nil
}

// evaluateText measures a language model on a text.
func evaluateText(
	ctx context.Context, t *Trained, source string, how Search,
) (telemetry.Eval, error) {
	return t.scoreText(ctx, source, func(text corpus.Tokens) (float64, int64, error) {
		return how.Reading.Score(ctx, t.weights.(*model.Model), text, int(t.Spec.Bptt))
	})
}

// scoreText measures a text. score returns the loss summed over the targets, and their number.
func (t *Trained) scoreText(
	ctx context.Context, source string, score func(corpus.Tokens) (float64, int64, error),
) (e telemetry.Eval, err error) {
	text, err := t.openText(ctx, source)
	if err != nil {
		return e, err
	}
	defer func() { _ = text.Close() }()
	sum, targets, err := score(text.Tokens())
	if err != nil {
		return e, err
	}
	e = t.scored(sum, targets)
	return e, t.perUnit(ctx, &e, text.Tokens().Len(), source)
}

// perUnit adds the loss per character, byte and word of the source's text, which has this many
// tokens as the model reads it. The units are those of the normalised text: the loss is spread over
// white space too, and EndOfText is a character, a byte and a word.
func (t *Trained) perUnit(
	ctx context.Context, e *telemetry.Eval, tokens int64, source string,
) error {
	characters, bytes, err := t.units(ctx, source, corpus.Char)
	if err != nil {
		return err
	}
	e.BitsPerCharacter = e.BitsPerToken * float64(tokens) / float64(characters)
	e.BitsPerByte = e.BitsPerToken * float64(tokens) / float64(bytes)
	if Tokenizer(t.Spec).Unit == corpus.Subword {
		words, _, err := t.units(ctx, source, corpus.Word)
		if err != nil {
			return err
		}
		e.PerplexityPerWord = math.Exp(e.Loss * float64(tokens) / float64(words))
	}
	return nil
}

// units counts a text's characters or words, and the bytes of UTF-8 that they have.
func (t *Trained) units(
	ctx context.Context, source string, unit corpus.Unit,
) (count, bytes int64, err error) {
	spec := jobspec.Default()
	spec.Tokenizer, spec.Normalize = string(unit), t.Spec.Normalize
	spec.Eos, spec.TextField = t.Spec.Eos, t.Spec.TextField
	text, err := OpenText(ctx, source, spec, nil)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = text.Close() }()
	tokens, sizes := text.Tokens(), make([]int64, text.Vocabulary().Len())
	for id := range sizes {
		sizes[id] = int64(len(text.Vocabulary().Token(int32(id))))
	}
	if end, ok := text.Vocabulary().End(); ok {
		sizes[end] = 1
	}
	part := make([]int32, countedTogether)
	for count < tokens.Len() {
		part = part[:min(int64(len(part)), tokens.Len()-count)]
		if err := tokens.ReadTokens(part, count); err != nil {
			return 0, 0, err
		}
		count += int64(len(part))
		for _, id := range part {
			bytes += sizes[id]
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
	}
	return count, bytes, nil
}

// countedTogether is how many tokens are read at a time to count them.
const countedTogether = 1 << 16
