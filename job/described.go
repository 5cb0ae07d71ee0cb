package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/compute"
	"rondo/corpus"
	"rondo/corpus/series"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/describe"
	"rondo/task/translate"
	"rondo/telemetry"
)

// described is the Data of the task describe.
type described struct {
	*exampleData
	vectors    *series.Series
	vocabulary *corpus.Vocabulary
}

func openDescribed(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	vectors, err := openVectors(ctx, spec.Vectors, 0)
	if err != nil {
		return nil, err
	}
	columns, err := corpus.NewVocabulary(append([]string{corpus.Unknown}, vectors.Columns...))
	if err != nil {
		return nil, err
	}
	d, err := openExampleData(ctx, spec, vectors.Rows())
	return described{d, vectors, columns}, err
}

// maxVectorsFile bounds a safetensors file of vectors, in bytes.
const maxVectorsFile = 4*series.MaxValues + 1<<20

// openVectors opens a table of vectors. columns is how many an earlier run had; 0: any number.
func openVectors(ctx context.Context, source string, columns int) (v *series.Series, err error) {
	if strings.HasSuffix(strings.ToLower(source), ".safetensors") {
		err = corpus.ReadSource(ctx, source, bucket.Open, func(r io.Reader) (err error) {
			v, err = readVectors(r)
			return err
		})
	} else {
		v, err = series.Open(ctx, source, bucket.Open)
	}
	if wrong, ok := errors.AsType[*corpus.FormatError](err); ok {
		wrong.By, wrong.Reads = "it", append(wrong.Reads, ".safetensors")
	}
	if err == nil && columns > 0 && len(v.Columns) != columns {
		err = fmt.Errorf("%s has %d columns, and the network reads %d: give other vectors", source,
			len(v.Columns), columns)
	}
	if err != nil && ctx.Err() == nil && !transient(err) {
		return nil, app.Usage(fmt.Errorf("--vectors: %w", err))
	}
	return v, err
}

// readVectors reads the one tensor [rows, F] of a safetensors file.
func readVectors(r io.Reader) (*series.Series, error) {
	file, err := io.ReadAll(io.LimitReader(r, maxVectorsFile+1))
	if err != nil {
		return nil, err
	}
	if len(file) > maxVectorsFile {
		return nil, fmt.Errorf("it is longer than %d bytes: give fewer vectors", maxVectorsFile)
	}
	tensors, _, err := checkpoint.ReadSafetensors(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, err
	}
	if len(tensors) != 1 || len(tensors[0].Shape) != 2 || len(tensors[0].Data) == 0 ||
		tensors[0].Shape[1] > series.MaxColumns {
		return nil, fmt.Errorf("it needs one tensor, [rows, columns] with up to %d columns",
			series.MaxColumns)
	}
	F, v := tensors[0].Shape[1], &series.Series{}
	for i := range F {
		v.Columns = append(v.Columns, strconv.Itoa(i+1))
	}
	for i, x := range tensors[0].Data {
		if x-x != 0 {
			return nil, fmt.Errorf("row %d: column %d is %v", i/F, i%F+1, x)
		}
		v.Values = append(v.Values, float64(x))
	}
	return v, nil
}

// float32s are the vectors as a network reads them.
func float32s(v *series.Series) []float32 {
	values := make([]float32, len(v.Values))
	for i, x := range v.Values {
		values[i] = float32(x)
	}
	return values
}

// Vocabulary implements Data: the unknown token, which is not used, and the vectors' columns.
func (d described) Vocabulary() *corpus.Vocabulary { return d.vocabulary }

// Fingerprint implements Data.
func (d described) Fingerprint() string {
	return d.exampleData.Fingerprint() + " " + d.vectors.Fingerprint()
}

// Extent implements Data.
func (d described) Extent() Extent {
	e := d.exampleData.Extent()
	e.Tokens, e.Rows = d.vocabulary.Len(), max(e.Rows, int64(d.vectors.Rows()))
	return e
}

// describerNetwork is the network of the task describe.
func describerNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := describerConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	n := networkOfPairs(c, data, 1, mostTokens(spec, data.LongestTarget)+1)
	n.Tokens = data.Tokens
	numbers := data.Rows * int64(c.Vectors)
	n.data += 12 * numbers // float64, and float32 for the device
	passes := n.size
	n.size = func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
		work, evaluation = passes(on, lanes)
		return work.And(on.TensorSize(int(numbers))), evaluation
	}
	return n, nil
}

// describerConfig is that network.
func describerConfig(spec *rondov1.JobSpec, data Extent) (t model.TranslatorConfig, err error) {
	c, err := ModelConfig(spec, data.Outputs)
	if err != nil {
		return t, err
	}
	t = translatorOf(c, data)
	t.Vectors, t.Context = data.Tokens-1, model.Context(slices.Index(describe.VectorUses(),
		spec.VectorAs))
	if t.Ends, err = model.ParseEnds(spec.Ends); err != nil {
		return t, app.Usage(err)
	}
	t.End, t.Lengths = translate.EndID, int(spec.MaxLength)+1
	return t, app.Usage(t.Validate())
}

// NewTask implements Data.
func (d described) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := describerConfig(d.spec, d.Extent())
	if err != nil {
		return nil, err
	}
	return d.newTask(c, device, tail, ledger,
		func(m *model.Translator, c translate.Config) (*translate.Task, error) {
			return describe.New(m, float32s(d.vectors), c)
		})
}

// Description is the text of a vector.
type Description struct {
	Row            int     `json:"row"`
	Text           string  `json:"text"`
	LogProbability float64 `json:"log_probability"`
}

// setVectors gives the network its sources, and returns how many there are.
func (t *Trained) setVectors(ctx context.Context, source string) (rows int, err error) {
	vectors, err := openVectors(ctx, source, t.Vocabulary.Len()-1)
	if err != nil {
		return 0, err
	}
	return vectors.Rows(), t.weights.(*model.Translator).SetVectors(float32s(vectors))
}

// Describe describes each row of a file of vectors.
func (t *Trained) Describe(ctx context.Context, how Search, each func(Description) error) error {
	rows, err := t.setVectors(ctx, how.Vectors)
	if err != nil {
		return err
	}
	s, together, err := t.searcher(how)
	if err != nil {
		return err
	}
	defer s.Close()
	tokens, err := corpus.NewVocabulary(t.Outputs)
	if err != nil {
		return err
	}
	return describe.Rows(ctx, s, rows, together, func(row int, h translate.Hypothesis) error {
		text := tokens.Decode(Tokenizer(t.Spec), h.Tokens)
		return each(Description{row, text, h.LogProbability})
	})
}

// evaluateDescriptions measures a network of the task describe on a file of examples.
func evaluateDescriptions(
	ctx context.Context, t *Trained, source string, how Search,
) (e telemetry.Eval, err error) {
	if how.Vectors == "" {
		how.Vectors = t.Spec.Vectors
	}
	rows, err := t.setVectors(ctx, how.Vectors)
	if err != nil {
		return e, err
	}
	return t.measurePairs(ctx, source, how, rows)
}
