package job

import (
	"context"
	"errors"
	"io"
	"math"

	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/lines"
	"rondo/task/translate"
	"rondo/telemetry"
)

// Translated is the Data of the task translate.
type Translated struct{ *exampleData }

// NewTask implements Data.
func (d Translated) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := TranslatorConfig(d.spec, d.Vocabulary().Len(), len(d.Outputs()))
	if err != nil {
		return nil, err
	}
	c.GradientTail = tail
	m, err := model.NewTranslator(c, device)
	if err != nil {
		return nil, err
	}
	t, err := translate.New(m, translate.Config{Training: d.training, Evaluation: d.evaluation,
		EvalData: d.EvalData(), Ledger: ledger})
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Task{Task: t, close: m.Close}, nil
}

// TranslatorConfig is the network of a job of the task translate, for vocabularies of these sizes.
func TranslatorConfig(
	spec *rondov1.JobSpec, source, target int,
) (t model.TranslatorConfig, err error) {
	c, err := ModelConfig(spec, source)
	if err != nil {
		return t, err
	}
	t = model.TranslatorConfig{Cell: c.Cell, SourceVocab: source, TargetVocab: target,
		Embed: c.Embed, Hidden: c.Hidden, Layers: c.Layers, Bidirectional: spec.Bidirectional,
		Dropout: c.Dropout, DropoutInput: c.DropoutInput,
		DropoutLocked: c.DropoutLocked, LayerNorm: c.LayerNorm, Skip: c.Skip, Init: c.Init, ForgetBias: c.ForgetBias,
		Seed: c.Seed}
	if t.Context, err = model.ParseContext(spec.DecoderContext); err != nil {
		return t, app.Usage(err)
	}
	if t.Attention, err = model.ParseAttention(spec.Attention); err != nil {
		return t, app.Usage(err)
	}
	return t, app.Usage(t.Validate())
}

// searcher makes a searcher for so many sentences at a time.
func (t *Trained) searcher(how Search, sentences int) (*translate.Searcher, error) {
	target, err := corpus.NewVocabulary(t.Outputs)
	if err != nil {
		return nil, err
	}
	most := int(t.Spec.MaxLength)
	s, err := translate.NewSearcher(t.Translator, t.Vocabulary, target, translate.SearchConfig{
		Sentences: sentences, Beam: how.Beam, Penalty: how.Penalty, Source: most, Target: most})
	return s, app.Usage(err)
}

// Search says how translations are searched: see translate.SearchConfig.
type Search struct {
	Beam    int
	Penalty float64
}

// Translation is a line of text with its translation.
type Translation struct {
	Text           string  `json:"text"`
	Translation    string  `json:"translation"`
	LogProbability float64 `json:"log_probability"`
}

// translatedTogether bounds the hypotheses that are computed at once, unless the beam is wider.
const translatedTogether = 64

// Translate translates the lines of standard input.
func (t *Trained) Translate(
	ctx context.Context, in io.Reader, how Search, each func(Translation) error,
) error {
	together := max(1, translatedTogether/max(1, how.Beam))
	s, err := t.searcher(how, together)
	if err != nil {
		return err
	}
	defer s.Close()
	target, err := corpus.NewVocabulary(t.Outputs)
	if err != nil {
		return err
	}
	reader := lines.Reader{Encode: t.encode, Most: int(t.Spec.MaxLength), Together: together}
	return t.input(reader.Read(ctx, in, func(texts []string, tokens [][]int32) error {
		found, err := s.Translate(ctx, tokens)
		if err != nil {
			return err
		}
		for i, h := range found {
			text := target.Decode(corpus.Unit(t.Spec.Tokenizer), h.Tokens)
			if err := each(Translation{texts[i], text, h.LogProbability}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// EvaluateTranslations measures a translator on a file of pairs.
func (t *Trained) EvaluateTranslations(
	ctx context.Context, source string, how Search,
) (e telemetry.Eval, err error) {
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Outputs)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	s, err := t.searcher(how, max(1, translatedTogether/max(1, how.Beam)))
	if err != nil {
		return e, err
	}
	defer s.Close()
	score, metrics, err := translate.Measure(ctx, t.Translator, set, s)
	if err != nil {
		return e, err
	}
	e.Step, e.Tokens, e.Loss = t.Step, score.Targets, score.Loss/float64(score.Targets)
	e.Perplexity, e.BitsPerToken = telemetry.Perplexity(e.Loss), e.Loss/math.Ln2
	for _, m := range metrics {
		e.Metrics = append(e.Metrics, telemetry.Metric(m))
	}
	return e, nil
}
