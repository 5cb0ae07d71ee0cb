package job

import (
	"context"
	"errors"
	"io"

	"google.golang.org/protobuf/proto"

	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/lines"
	"rondo/task/lm"
	"rondo/task/translate"
	"rondo/telemetry"
)

// translated is the Data of the task translate.
type translated struct{ *exampleData }

func openTranslated(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	d, err := openExampleData(ctx, spec, 0)
	return translated{d}, err
}

// translatorNetwork is the network of the task translate.
func translatorNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := translatorConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	n := networkOfPairs(c, data, mostTokens(spec, data.Longest)+1, // with ends
		mostTokens(spec, data.LongestTarget)+1)
	n.Tokens = c.SourceVocab
	return n, nil
}

// networkOfPairs is a translator for pairs of at most source and target steps.
func networkOfPairs(c model.TranslatorConfig, data Extent, source, target int) Network {
	return Network{Tensors: c.Layout(), data: exampleBytes * data.Rows,
		make: func(on compute.Device) (weights, error) { return model.NewTranslator(c, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			evaluation = c.DecoderSize(on, source, lanes)
			return c.PassSize(on, source, target, lanes).And(evaluation), evaluation
		}}
}

// NewTask implements Data.
func (d translated) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := translatorConfig(d.spec, d.Extent())
	if err != nil {
		return nil, err
	}
	return d.newTask(c, device, tail, ledger, translate.New)
}

// newTask makes a network and its task on the data, which are pairs.
func (d *exampleData) newTask(
	c model.TranslatorConfig, device compute.Device, tail int, ledger Ledger,
	newTask func(*model.Translator, translate.Config) (*translate.Task, error),
) (*Task, error) {
	c.GradientTail = tail
	m, err := model.NewTranslator(c, device)
	if err != nil {
		return nil, err
	}
	t, err := newTask(m, translate.Config{Training: d.training, Evaluation: d.evaluation,
		EvalData: d.EvalData(), Ledger: ledger, Sampling: translate.Sampling{
			Own: 1 - d.spec.TeacherForcing, Steps: d.spec.TeacherForcingSteps, Seed: d.spec.Seed,
			Drawn: d.spec.TeacherForcingChoice == "sample"}})
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Task{Task: t, close: m.Close}, nil
}

// translatorConfig is the network of a job of the task translate.
func translatorConfig(spec *rondov1.JobSpec, data Extent) (t model.TranslatorConfig, err error) {
	c, err := ModelConfig(spec, data.Tokens)
	if err != nil {
		return t, err
	}
	t = translatorOf(c, data)
	t.SourceVocab, t.Bidirectional = data.Tokens, spec.Bidirectional
	t.HiddenBackward = int(spec.HiddenBackward)
	if t.Context, err = model.ParseContext(spec.DecoderContext); err != nil {
		return t, app.Usage(err)
	}
	if t.Attention, err = model.ParseAttention(spec.Attention); err != nil {
		return t, app.Usage(err)
	}
	if t.Feedback, err = model.ParseFeedback(spec.Feedback); err != nil {
		return t, app.Usage(err)
	}
	return t, app.Usage(t.Validate())
}

// translatorOf is a translator with the parts of a model.
func translatorOf(c model.Config, data Extent) model.TranslatorConfig {
	return model.TranslatorConfig{Cell: c.Cell, TargetVocab: data.Outputs, Embed: c.Embed,
		Hidden: c.Hidden, Layers: c.Layers, Dropout: c.Dropout, DropoutInput: c.DropoutInput,
		DropoutLocked: c.DropoutLocked, LayerNorm: c.LayerNorm, Skip: c.Skip,
		DeepInput: c.DeepInput, DeepTransition: c.DeepTransition, DeepOutput: c.DeepOutput,
		LabelSmoothing: c.LabelSmoothing, Init: c.Init, ForgetBias: c.ForgetBias,
		Leak: c.Leak, Periods: c.Periods,
		Seed: c.Seed}
}

// searcher makes a searcher for as many sources together as it says.
func (t *Trained) searcher(how Search) (s *translate.Searcher, together int, err error) {
	target, err := corpus.NewVocabulary(t.Outputs)
	if err != nil {
		return nil, 0, err
	}
	m, most, source := t.weights.(*model.Translator), int(t.Spec.MaxLength), t.Vocabulary
	c := translate.SearchConfig{Sentences: max(1, translatedTogether/max(1, how.Beam)),
		Beam: how.Beam, Penalty: how.Penalty, Source: most, Target: most}
	if m.Config().Vectors > 0 {
		c.Source, source = 1, nil
	}
	s, err = translate.NewSearcher(m, source, target, c)
	return s, c.Sentences, app.Usage(err)
}

// Search configures the search for translations: see translate.SearchConfig.
type Search struct {
	Beam    int
	Penalty float64
	Vectors string // file of the sources of a network of the task describe

	Reading lm.Reading // of a text, by a language model
}

// Translation is a line of text with its translation.
type Translation struct {
	Text           string  `json:"text"`
	Translation    string  `json:"translation"`
	LogProbability float64 `json:"log_probability"`
}

// translatedTogether bounds the hypotheses that are computed at once, unless the beam is wider.
const translatedTogether = 64

// Translate translates the lines of standard input. A line without a token has an empty
// translation.
func (t *Trained) Translate(
	ctx context.Context, in io.Reader, how Search, each func(Translation) error,
) error {
	s, together, err := t.searcher(how)
	if err != nil {
		return err
	}
	defer s.Close()
	target, err := corpus.NewVocabulary(t.Outputs)
	if err != nil {
		return err
	}
	reader := lines.Reader{Encode: t.encode, Most: int(t.Spec.MaxLength), Together: together,
		Blank: true}
	return t.input(reader.Read(ctx, in, func(texts []string, tokens [][]int32) error {
		var sources [][]int32
		for _, source := range tokens {
			if len(source) > 0 {
				sources = append(sources, source)
			}
		}
		found, err := s.Translate(ctx, sources)
		if err != nil {
			return err
		}
		for i, text := range texts {
			line := Translation{Text: text} // without a token there is nothing to translate
			if len(tokens[i]) > 0 {
				line.Translation = target.Decode(Tokenizer(t.Spec), found[0].Tokens)
				line.LogProbability, found = found[0].LogProbability, found[1:]
			}
			if err := each(line); err != nil {
				return err
			}
		}
		return nil
	}))
}

// evaluateTranslations measures a translator on a file of pairs.
func evaluateTranslations(
	ctx context.Context, t *Trained, source string, how Search,
) (e telemetry.Eval, err error) {
	return t.measurePairs(ctx, source, how, 0)
}

// measurePairs measures a translator on a file of examples. rows is the number of rows of the table
// beside it.
func (t *Trained) measurePairs(
	ctx context.Context, source string, how Search, rows int,
) (e telemetry.Eval, err error) {
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Outputs, rows)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	every := proto.CloneOf(t.Spec)
	every.MinFrequency, every.MaxExamples = 0, 0 // as set has them
	whole, err := OpenExamples(ctx, every, source, t.Vocabulary, nil, rows)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, whole.Close()) }()
	s, _, err := t.searcher(how)
	if err != nil {
		return e, err
	}
	defer s.Close()
	score, metrics, err := translate.Measure(ctx, t.weights.(*model.Translator), set, whole,
		corpus.Unit(t.Spec.Tokenizer), s)
	if err != nil {
		return e, err
	}
	return t.scored(score.Loss, score.Targets, metrics...), nil
}
