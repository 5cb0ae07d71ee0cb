package job

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
)

func seriesSpec(t *testing.T, source string, flags ...string) *rondov1.JobSpec {
	t.Helper()
	return parsed(t, append([]string{"rondo", "train", "--task", "regress", "--corpus", source,
		"--hidden", "5", "--layers", "1", "--batch", "2", "--bptt", "2", "--device", "cpu"},
		flags...))
}

const fewRows = "a,b\n1,9\n2,8\n3,7\n4,6\n5,5\n6,4\n7,3\n8,2\n"

// What a job of a series learns from: rows for tokens, the last ones for evaluation, and the scale
// of the others.
func TestSeriesData(t *testing.T) {
	source := inFile(t, "few.csv", fewRows)
	d := openData(t, seriesSpec(t, source, "--target", "b", "--validation-fraction", "0.25"))
	if got := d.Vocabulary().Tokens(); !slices.Equal(got, []string{"<unk>", "a", "b"}) {
		t.Errorf("columns %q", got)
	}
	if got := d.Outputs(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("outputs %q", got)
	}
	training, evaluation := d.Sizes()
	if training != 6 || evaluation != 2 || d.SegmentsPerEpoch() != 1 || d.EvalData() == 0 {
		t.Errorf("%d and %d rows, %d segments", training, evaluation, d.SegmentsPerEpoch())
	}
	if s := d.(*Series).scale; s.Mean[0] != 3.5 || s.Mean[1] != 6.5 {
		t.Errorf("%+v", s)
	}
	for segment := range int64(4) {
		for lane := range 2 {
			if at := d.Offset(segment, lane); at < 0 || at > 3 {
				t.Errorf("segment %d of lane %d begins at row %d", segment, lane, at)
			}
		}
	}
	n, err := NetworkOf(d.(*Series).spec, d.Extent())
	if err != nil || n.Table != "" || len(n.Tensors) != 6 || n.Tensors[0].Shape[0] != 1 ||
		n.Tensors[2].Shape[1] != 2 {
		t.Errorf("%+v, %v", n, err)
	}
	few, err := Memory(d.(*Series).spec, d.Extent(), 1)
	if err != nil || few.Data != 8*(2*numberBytes+4) {
		t.Errorf("%+v, %v", few, err)
	}
}

// A bad series or target is the user's mistake, in one line.
func TestSeriesErrors(t *testing.T) {
	source := inFile(t, "few.csv", fewRows)
	for want, spec := range map[string]*rondov1.JobSpec{
		`no column "c"`: seriesSpec(t, source, "--target", "c"),
		"line 2":        seriesSpec(t, inFile(t, "bad.csv", "a\nx\n")),
		"lower --batch or --bptt": seriesSpec(t, source, "--bptt", "9",
			"--validation-fraction", "0"),
		"needs 2": seriesSpec(t, source, "--validation-fraction", "0.13"),
		"--eval-corpus": seriesSpec(t, source, "--eval-corpus", inFile(t, "c.csv",
			"c,b\n1,2\n")),
	} {
		_, err := OpenData(t.Context(), spec)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!errors.As(err, new(*app.UsageError)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
