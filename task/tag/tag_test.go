package tag

import (
	"math"
	"slices"
	"strings"
	"testing"
)

var labels = []string{"O", "B-LOC", "B-PER", "I-LOC", "I-PER"}

// numbers returns the numbers of labels in a row of them.
func numbers(t *testing.T, labels []string, row string) (ids []int32) {
	t.Helper()
	for _, label := range strings.Fields(row) {
		i := slices.Index(labels, label)
		if i < 0 {
			t.Fatalf("no label %s", label)
		}
		ids = append(ids, int32(i))
	}
	return ids
}

// rows have the F1 and the accuracy of seqeval 1.2.2 (f1_score and accuracy_score in its default
// mode, which has the rules of CoNLL's conlleval.pl).
var rows = []struct {
	right, predicted string
	f1, accuracy     float64
}{
	{"O B-PER I-PER O B-LOC", "O B-PER I-PER O B-LOC", 1, 1},
	{"B-PER I-PER O", "B-PER O O", 0, 2. / 3},                              // too short
	{"I-LOC I-LOC O B-LOC B-LOC", "B-LOC I-LOC O B-LOC I-LOC", 2. / 5, .6}, // I- begins one
	{"O I-PER I-LOC", "O B-PER B-LOC", 1, 1. / 3},                          // so does a type
	{"B-PER I-LOC O", "B-PER B-LOC O", 1, 2. / 3},
	{"O O O", "B-PER O I-LOC", 0, 1. / 3},
	{"B-LOC I-LOC", "O O", 0, 0},
}

func TestSpansAreConllevals(t *testing.T) {
	c := NewCounter(labels)
	all := make([]int64, c.Counters())
	check := func(what string, counts []int64, f1, accuracy float64) {
		t.Helper()
		got := c.Metrics(counts)
		if len(got) != 2 || got[0].Name != "accuracy" || got[1].Name != "f1" {
			t.Fatalf("metrics %v", got)
		}
		if math.Abs(got[0].Value-accuracy) > 1e-12 || math.Abs(got[1].Value-f1) > 1e-12 {
			t.Errorf("%s: %v, want accuracy %v and f1 %v", what, got, accuracy, f1)
		}
	}
	for _, r := range rows {
		counts := make([]int64, c.Counters())
		c.Count(counts, numbers(t, labels, r.predicted), numbers(t, labels, r.right))
		check(r.right+" | "+r.predicted, counts, r.f1, r.accuracy)
		for i, n := range counts {
			all[i] += n
		}
	}
	check("all rows", all, 0.6363636363636364, 0.5833333333333334)
}

// Labels of another form have no spans.
func TestOtherLabels(t *testing.T) {
	for _, labels := range [][]string{
		{"NOUN", "VERB"}, {"O"}, {"O", "B-", "I-"}, {"O", "B-LOC", "S-LOC"}, {"B", "I", "O"},
	} {
		c := NewCounter(labels)
		counts := make([]int64, c.Counters())
		c.Count(counts, []int32{0, 0, 0}, []int32{0, int32(len(labels) - 1), 0})
		got := c.Metrics(counts)
		want := 1.0
		if len(labels) > 1 {
			want = 2. / 3
		}
		if len(got) != 1 || got[0].Name != "accuracy" || got[0].Value != want {
			t.Errorf("%q: %v", labels, got)
		}
	}
}
