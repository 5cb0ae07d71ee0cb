package job

import (
	"errors"
	"fmt"
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

// TestSequencesData: the lanes read each sequence of --bptt rows once an epoch, in random order or,
// with --sampling sequential, each lane a part of them in their order. The target is the last row.
func TestSequencesData(t *testing.T) {
	source := inFile(t, "few.csv", fewRows)
	flags := []string{"--sequences", "--target", "b", "--validation-fraction", "0"}
	for _, sampling := range []string{"", "sequential"} {
		spec := seriesSpec(t, source, append(flags, "--sampling", "sequential")...)
		if sampling == "" {
			if spec = seriesSpec(t, source, flags...); spec.Sampling != "random" {
				t.Errorf("--sampling %s is the default", spec.Sampling)
			}
		}
		d := openData(t, spec).(*Series)
		reads := d.sequencesConfig(nil).Batches
		if training, _ := d.Sizes(); training != 8 || reads.SegmentsPerEpoch() != 2 ||
			!reads.Reset(1) {
			t.Fatalf("%d rows, %d segments", training, reads.SegmentsPerEpoch())
		}
		orders := map[string]bool{}
		for epoch := range int64(20) {
			var order []int32
			for segment := range int64(2) {
				inputs, targets := make([]int32, 4), make([]int32, 4)
				if err := reads.Fill(t.Context(), 2*epoch+segment, 0, 2, inputs,
					targets); err != nil {
					t.Fatal(err)
				}
				want := []int32{-1, -1, inputs[0] + 1, inputs[1] + 1}
				if !slices.Equal(targets, want) || !slices.Equal(inputs[2:], want[2:]) ||
					inputs[0]%2 != 0 || int64(inputs[1]/2) != d.Offset(2*epoch+segment, 1) {
					t.Errorf("inputs %v, targets %v", inputs, targets)
				}
				order = append(order, inputs[:2]...)
			}
			orders[fmt.Sprint(order)] = true
			if slices.Sort(order); !slices.Equal(order, []int32{0, 2, 4, 6}) {
				t.Errorf("epoch %d reads %v", epoch, order)
			}
		}
		if sequential := orders["[0 4 2 6]"]; sampling != "" && (len(orders) != 1 ||
			!sequential) || sampling == "" && len(orders) < 5 {
			t.Errorf("--sampling %q: orders %v", sampling, orders)
		}
	}
}

// TestSequencesEvaluation: an evaluation reads each sequence once. Lanes without one have no
// target.
func TestSequencesEvaluation(t *testing.T) {
	source := inFile(t, "few.csv", fewRows)
	d := openData(t, seriesSpec(t, source, "--sequences", "--target", "b", "--eval-corpus",
		inFile(t, "other.csv", "a,b\n1,2\n3,4\n5,6\n7,8\n9,1\n2,3\n"))).(*Series)
	reads := d.sequencesConfig(nil).Evaluation
	if _, evaluation := d.Sizes(); evaluation != 6 || reads.Segments() != 2 {
		t.Fatalf("%d rows, %d segments", evaluation, reads.Segments())
	}
	var got []int32
	for segment := range int64(2) {
		inputs, targets := make([]int32, 4), make([]int32, 4)
		if err := reads.Fill(t.Context(), segment, 0, 2, inputs, targets); err != nil {
			t.Fatal(err)
		}
		got = append(got, targets...)
	}
	if !slices.Equal(got, []int32{-1, -1, 9, 11, -1, -1, 13, -1}) { // behind the 8 of --corpus
		t.Errorf("targets %v", got)
	}
}

// TestSequencesErrors: sequences that cannot be cut, or are too few, are the user's mistake.
func TestSequencesErrors(t *testing.T) {
	source := inFile(t, "few.csv", fewRows)
	for want, flags := range map[string][]string{
		"--sequences are of --bptt 3 rows, and it has 8": {"--bptt", "3"},
		"2 sequences to train on":                        {"--bptt", "4", "--batch", "3"},
	} {
		flags = append(flags, "--sequences", "--target", "b", "--validation-fraction", "0")
		_, err := OpenData(t.Context(), seriesSpec(t, source, flags...))
		if err == nil || !strings.Contains(err.Error(), want) ||
			!errors.As(err, new(*app.UsageError)) {
			t.Errorf("%s: %v", want, err)
		}
	}
	spec := seriesSpec(t, source, "--sequences", "--validation-fraction", "0")
	_, err := NetworkOf(spec, openData(t, spec).Extent())
	if err == nil || !strings.Contains(err.Error(), "--sequences predicts the columns") {
		t.Error(err)
	}
}
