package job

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/compute"
	"rondo/corpus"
	"rondo/corpus/series"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/regress"
	"rondo/task/reservoir"
	"rondo/telemetry"
)

// Series is the Data of the task regress. Its tokens are numbers of rows.
type Series struct {
	segmentData
	all        []*series.Series // of --corpus, and of --eval-corpus if there is one
	targets    []int
	scale      series.Scale
	vocabulary *corpus.Vocabulary
}

// rowNumbers are the numbers of rows, from the first on.
type rowNumbers struct{ first, count int }

// Len implements corpus.Tokens.
func (r rowNumbers) Len() int64 { return int64(r.count) }

// ReadTokens implements corpus.Tokens.
func (r rowNumbers) ReadTokens(dst []int32, off int64) error {
	for i := range dst {
		dst[i] = int32(int64(r.first+i) + off)
	}
	return nil
}

// OpenSeries opens a file of a time series for a job's task. columns are those of an earlier run;
// nil: any.
func OpenSeries(
	ctx context.Context, spec *rondov1.JobSpec, source string, columns []string,
) (*series.Series, error) {
	s, err := series.Open(ctx, source, bucket.Open)
	if wrong, ok := errors.AsType[*corpus.FormatError](err); ok {
		wrong.By = "--task " + spec.Task
	}
	if err != nil {
		if ctx.Err() == nil && !transient(err) {
			err = app.Usage(err)
		}
		return nil, err
	}
	if columns != nil && fmt.Sprintf("%q", columns) != fmt.Sprintf("%q", s.Columns) {
		return nil, app.Usagef("corpus %s has the columns %.200q, and the network reads %.200q: "+
			"give a file with these", source, s.Columns, columns)
	}
	return s, nil
}

// openSeries opens the job's series.
func openSeries(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	whole, err := OpenSeries(ctx, spec, spec.Corpus, nil)
	if err != nil {
		return nil, err
	}
	d := &Series{segmentData: segmentData{spec: spec}, all: []*series.Series{whole}}
	if d.targets, err = series.Select(whole.Columns, spec.Target); err != nil {
		return nil, app.Usage(err)
	}
	d.identity = whole.Fingerprint()
	var others corpus.Tokens
	if spec.EvalCorpus != "" {
		held, err := OpenSeries(ctx, spec, spec.EvalCorpus, whole.Columns)
		if err != nil {
			return nil, fmt.Errorf("--eval-corpus: %w", err)
		}
		d.all, others = append(d.all, held), rowNumbers{whole.Rows(), held.Rows()}
		d.identity = held.Fingerprint()
	}
	d.identity = fmt.Sprintf("%s %v", d.identity, spec.ValidationFraction)
	rows := 1
	if spec.Sequences {
		rows, err = int(spec.Bptt), d.divideSequences()
	} else {
		err = d.divide(rowNumbers{0, whole.Rows()}, others, "series", "rows")
	}
	if err != nil {
		return nil, err
	}
	d.scale = whole.Measure(rows * int(d.training.Len()))
	d.vocabulary, err = corpus.NewVocabulary(append([]string{corpus.Unknown}, whole.Columns...))
	return d, err
}

// Vocabulary implements Data: the unknown token, which is not used, and the columns' names.
func (d *Series) Vocabulary() *corpus.Vocabulary { return d.vocabulary }

// Outputs implements Data: the predicted columns.
func (d *Series) Outputs() (names []string) {
	for _, column := range d.targets {
		names = append(names, d.all[0].Columns[column])
	}
	return names
}

// Fingerprint implements Data.
func (d *Series) Fingerprint() string { return d.all[0].Fingerprint() }

// Extent implements Data.
func (d *Series) Extent() Extent {
	e := Extent{Tokens: d.vocabulary.Len(), Outputs: len(d.targets)}
	for _, s := range d.all {
		e.Rows += int64(s.Rows())
	}
	return e
}

// numberBytes is the host memory of a number of a series: 8 bytes, and the garbage of reading the
// file.
const numberBytes = 8 + 32

// seriesNetwork is the network of the task regress.
func seriesNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := seriesConfig(spec, data.Tokens, data.Outputs)
	if err != nil {
		return Network{}, err
	}
	n := networkOfSegments(spec, c)
	inputs, targets := data.Rows*int64(c.Inputs), data.Rows*int64(c.Vocab)
	passes := n.size
	n.Tokens, n.data = data.Tokens, numberBytes*inputs+4*targets
	n.size = func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
		work, evaluation = passes(on, lanes)
		return work.And(on.TensorSize(int(inputs))).And(on.TensorSize(int(targets))), evaluation
	}
	return n, nil
}

// NewTask implements Data.
func (d *Series) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	config, err := seriesConfig(d.spec, d.vocabulary.Len(), len(d.targets))
	if err != nil {
		return nil, err
	}
	reads := regress.Config{All: d.all, Targets: d.targets, Scale: d.scale,
		Sequences: d.spec.Sequences}
	if d.spec.Sequences {
		reads.Config = d.sequencesConfig(ledger)
	} else if reads.Config, err = d.config(ledger); err != nil {
		return nil, err
	}
	config.GradientTail = tail
	m, err := model.New(config, device)
	if err != nil {
		return nil, err
	}
	task, err := regress.New(m, reads)
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Task{Task: task, close: m.Close}, nil
}

// Close implements Data.
func (d *Series) Close() error { return nil }

// seriesConfig is the network of a job of the task regress. The vocabulary has one token more than
// the series has columns; outputs are the predicted columns.
func seriesConfig(spec *rondov1.JobSpec, vocabulary, outputs int) (model.Config, error) {
	c, err := modelConfig(spec, vocabulary)
	if err != nil {
		return c, err
	}
	if c.Inputs, c.Vocab = vocabulary-1, outputs; spec.Sequences {
		c.Inputs -= outputs
	}
	if c.Inputs < 1 {
		return c, app.Usagef("--sequences predicts the columns of --target from the others: name " +
			"fewer")
	}
	return c, app.Usage(c.Validate())
}

// scaleMetrics are the scale of a series in the metrics of a manifest.
func (d *Series) scaleMetrics(to checkpoint.Metrics) {
	for i, column := range d.all[0].Columns {
		to["mean "+column], to["std "+column] = d.scale.Mean[i], d.scale.Std[i]
	}
}

// Forecaster is a trained network of the task regress with a series to predict.
type Forecaster struct {
	*series.Series
	Targets []int // columns that the network predicts
	trained *Trained
	scale   series.Scale
}

// Forecaster opens a series for a network of the task regress.
func (t *Trained) Forecaster(ctx context.Context, source string) (*Forecaster, error) {
	columns := t.Vocabulary.Tokens()[1:]
	s, err := OpenSeries(ctx, t.Spec, source, columns)
	if err != nil {
		return nil, err
	}
	if s.Rows() < 2 {
		return nil, app.Usagef("corpus %s has one row, and 2 are needed: give a longer series",
			source)
	}
	if T := int(t.Spec.Bptt); t.Spec.Sequences && s.Rows()%T != 0 {
		return nil, app.Usagef("corpus %s has %d rows, and the network reads --sequences of %d: "+
			"give whole ones", source, s.Rows(), T)
	}
	f := &Forecaster{Series: s, trained: t}
	for _, column := range columns {
		mean, known := t.Metrics["mean "+column]
		std, also := t.Metrics["std "+column]
		if !known || !also || !(std > 0) {
			return nil, fmt.Errorf("manifest.json in %s: it has no mean and std of the column %q",
				t.Path, column)
		}
		f.scale.Mean, f.scale.Std = append(f.scale.Mean, mean), append(f.scale.Std, std)
	}
	for _, name := range t.Outputs {
		column := int(t.Vocabulary.ID(name)) - 1
		if column < 0 {
			return nil, fmt.Errorf("manifest.json in %s: the output %q is no column", t.Path, name)
		}
		f.Targets = append(f.Targets, column)
	}
	return f, nil
}

// forecaster makes the network's forecaster.
func (t *Trained) forecaster(ahead int, columns []int) (regress.Forecaster, error) {
	if m, ok := t.weights.(*reservoir.Model); ok {
		return m.NewForecaster(ahead, columns)
	}
	return t.weights.(*model.Model).NewForecaster(ahead, columns)
}

// Forecast is regress.Forecast.
func (f *Forecaster) Forecast(
	ctx context.Context, ahead int, each func(row int, predicted []float64) error,
) error {
	if spec := f.trained.Spec; spec.Sequences {
		if ahead > 1 {
			return app.Usagef("--steps %d: --sequences have one prediction each: leave it out",
				ahead)
		}
		return regress.Last(ctx, f.trained.weights.(*model.Model), f.Series, f.scale, f.Targets,
			int(spec.Bptt), each)
	}
	return regress.Forecast(ctx, f.trained.forecaster, f.Series, f.scale, f.Targets,
		ahead, each)
}

// evaluateSeries measures a network of the task regress on a series, 1, 4, 16 and 64 steps ahead.
func evaluateSeries(
	ctx context.Context, t *Trained, source string, _ Search,
) (e telemetry.Eval, err error) {
	f, err := t.Forecaster(ctx, source)
	if err != nil {
		return e, err
	}
	var errs regress.Errors
	if t.Spec.Sequences {
		errs, err = regress.MeasureLast(ctx, t.weights.(*model.Model), f.Series, f.scale,
			f.Targets, int(t.Spec.Bptt))
	} else {
		errs, err = regress.Measure(ctx, t.forecaster, f.Series, f.scale, f.Targets,
			[]int{1, 4, 16, 64})
	}
	if err != nil {
		return e, err
	}
	e = telemetry.Eval{Step: t.Step, Tokens: errs.Rows, Loss: errs.Loss}
	for i, k := range errs.Steps {
		name := "mse"
		if k > 1 {
			name = fmt.Sprintf("mse_%d_ahead", k)
		}
		e.Metrics = append(e.Metrics, telemetry.Metric{Name: name, Value: errs.MSE[i]})
	}
	if math.IsInf(errs.Loss, 0) || math.IsNaN(errs.Loss) {
		return e, errors.New("the network's predictions are not finite: use another checkpoint")
	}
	return e, nil
}
