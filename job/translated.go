package job

import (
	"rondo/compute"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/translate"
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
		Dropout: c.Dropout, DropoutInput: c.DropoutInput, Init: c.Init, ForgetBias: c.ForgetBias,
		Seed: c.Seed}
	if t.Context, err = model.ParseContext(spec.Context); err != nil {
		return t, app.Usage(err)
	}
	return t, app.Usage(t.Validate())
}

// searcher makes a searcher with this many sentences at a time; of cfg it takes beam and penalty.
func (t *Trained) searcher(cfg translate.SearchConfig) (*translate.Searcher, error) {
	target, err := corpus.NewVocabulary(t.Outputs)
	if err != nil {
		return nil, err
	}
	cfg.Source, cfg.Target = int(t.Spec.MaxLength), int(t.Spec.MaxLength)
	s, err := translate.NewSearcher(t.Translator, t.Vocabulary, target, cfg)
	return s, app.Usage(err)
}
