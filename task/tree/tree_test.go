package tree

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/example"
	"rondo/task/label"
	"rondo/task/tasktest"
	"rondo/train"
)

// lanes is such that the last segment has lanes without a tree.
const lanes = 5

// trees are 13 trees; some inner nodes and leaves have labels.
func trees() string {
	text := ""
	for i := range 13 {
		inner := fmt.Sprintf("(w%d) (a (b x) y)", i%4)
		for range i % 5 {
			inner = fmt.Sprintf("(c %s) ((b z%d) q r)", inner, i%3)
		}
		text += fmt.Sprintf("(%c %s)\n", 'a'+i%3, inner)
	}
	return text
}

// texts are 13 texts with a label.
func texts() string {
	text := ""
	for i := range 13 {
		text += fmt.Sprintf("%c\tw%d%s\n", 'a'+i%3, i%4, strings.Repeat(" x", i%6))
	}
	return text
}

// newTask makes a task of some trees, which it also evaluates.
func newTask(t *testing.T, cell model.TreeCell, balanced bool) (*Task, *examples.Set, *ledger) {
	t.Helper()
	c := examples.Config{Kind: examples.Trees, Binary: cell.Binary(), MaxLength: 100,
		Tokenizer: corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None},
		CacheDir:  t.TempDir(), Source: filepath.Join(t.TempDir(), "a.txt")}
	file := trees()
	if balanced {
		c.Kind, c.Source, file = examples.Labelled, c.Source[:len(c.Source)-4]+".tsv", texts()
	}
	if err := os.WriteFile(c.Source, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := examples.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	training, err := examples.NewBatches(set, examples.BatchesConfig{Lanes: lanes, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	evaluation, err := examples.NewEvaluation(set, lanes)
	if err != nil {
		t.Fatal(err)
	}
	network, err := model.NewTree(model.TreeConfig{Cell: cell, Vocab: set.Vocabulary().Len(),
		Embed: 4, Hidden: 5, Labels: len(set.Labels()), Seed: 1, GradientTail: train.Tail},
		tasktest.Device(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{}
	task := New(network, Config{Training: Data{example.Data{Set: set, Batches: training}, balanced},
		Evaluation: &Data{example.Data{Set: set, Batches: evaluation}, balanced}, EvalData: 7,
		Ledger: l})
	t.Cleanup(func() {
		network.Close()
		set.Close()
	})
	return task, set, l
}

// ledger records how many numbers are read.
type ledger struct{ read int64 }

func (l *ledger) Intend(_ int64, _, _, _ int, inputs []int32) error {
	l.read += int64(len(inputs))
	return nil
}

// TestSeats: the loss and the gradient of a segment do not depend on how its lanes are dealt to
// seats. An epoch reads each tree once.
func TestSeats(t *testing.T) {
	for cell := model.TreeLSTM; cell <= model.TreeBag; cell++ {
		for _, balanced := range []bool{false, true} {
			task, set, read := newTask(t, cell, balanced)
			var tokens, targets, labels int64
			for segment := range task.SegmentsPerEpoch() {
				all := train.Lanes{Count: lanes}
				tokens += task.Tokens(segment, all)
				targets += task.Targets(segment, all)
				loss, gradient := tasktest.Pass(t, task, segment, 0.25, lanes)
				for _, seats := range [][]int{{2, 3}, {1, 1, 3}} {
					got, other := tasktest.Pass(t, task, segment, 0.25, seats...)
					if math.Abs(got-loss) > 1e-5*loss {
						t.Errorf("seats %v: loss %v, want %v", seats, got, loss)
					}
					for i, g := range other {
						if math.Abs(float64(g-gradient[i])) > 1e-4 {
							t.Errorf("seats %v: gradient %d is %v, want %v", seats, i, g,
								gradient[i])
						}
					}
				}
			}
			for i := range set.Len() {
				labels += int64(set.Targets(i))
			}
			if tokens != set.Tokens() || read.read != 3*tokens || targets != labels {
				t.Errorf("%d tokens of %d, the ledger has %d, %d targets of %d", tokens,
					set.Tokens(), read.read, targets, labels)
			}
		}
	}
}

// TestEvaluation: an evaluation counts each label once, on any seats, as Score does.
func TestEvaluation(t *testing.T) {
	for _, balanced := range []bool{false, true} {
		task, set, _ := newTask(t, model.TreeLSTM, balanced)
		whole, err := Score(t.Context(), task.Tree, set, balanced)
		if err != nil {
			t.Fatal(err)
		}
		for _, seats := range [][]int{{5}, {2, 3}} {
			sum := tasktest.Evaluate(t, task, seats...)
			if !slices.Equal(sum.Counts, whole.Counts) || sum.Targets != whole.Targets ||
				sum.Counts[countRoots] != set.Len() ||
				math.Abs(sum.Loss-whole.Loss) > 1e-5*whole.Loss {
				t.Errorf("seats %v: %+v, want %+v", seats, sum, whole)
			}
		}
	}
	s := train.Score{Targets: 8, Counts: []int64{6, 4, 1}}
	if got := fmt.Sprint(Metrics(s)); got != "[{accuracy 0.75} {root_accuracy 0.25}]" {
		t.Error(got)
	}
}

// TestReader: lines have the labels that Score counts as right, whatever stands in them.
func TestReader(t *testing.T) {
	for _, balanced := range []bool{false, true} {
		task, set, _ := newTask(t, model.TreeLSTM, balanced)
		whole, err := Score(t.Context(), task.Tree, set, balanced)
		if err != nil {
			t.Fatal(err)
		}
		r := Reader{Network: task.Tree, Words: set.Vocabulary(), Labels: set.Labels(), Most: 60}
		file, column := trees(), 1
		if balanced {
			file, column = strings.ReplaceAll(texts(), "\t", "\t "), 2
			r.Encode = func(line string) ([]int32, error) {
				return set.Vocabulary().Encode(corpus.Tokenizer{Unit: corpus.Word,
					Normalize: corpus.None}, line)
			}
		}
		var in, right []string
		for _, row := range strings.Split(strings.TrimSpace(file), "\n") {
			in, right = append(in, row[column-1:]), append(right, strings.Trim(row[:2], "(\t"))
			if balanced {
				in[len(in)-1] = row[2:]
			}
		}
		var count int64
		read := func(text string) error {
			at := 0
			return r.Lines(t.Context(), strings.NewReader(text), func(l label.Line) error {
				if l.Text != in[at] || len(l.Labels) != 1 || !(l.Probabilities[0] > 0.2) {
					t.Errorf("%+v for %q", l, in[at])
				}
				if l.Labels[0] == right[at] {
					count++
				}
				if head := "(" + l.Labels[0] + " "; balanced != (l.Tree == "") ||
					!balanced && !strings.HasPrefix(l.Tree, head) {
					t.Errorf("%q has the tree %q", l.Text, l.Tree)
				}
				at++
				return nil
			})
		}
		if err := read(strings.Join(in, "\n")); err != nil ||
			count != whole.Counts[countRightRoots] {
			t.Errorf("%d right, want %d: %v", count, whole.Counts[countRightRoots], err)
		}
		long := "(a" + strings.Repeat(" x", 40) + ")"
		if balanced {
			long = strings.Repeat("x ", 61)
		}
		if err := read(long); err == nil || !strings.Contains(err.Error(), "line 1: it has ") {
			t.Error(err)
		}
	}
}

// TestReaderDraws: a line's tree has its own nodes with a label each, the root that of the line.
func TestReaderDraws(t *testing.T) {
	for cell := model.TreeLSTM; cell <= model.TreeBag; cell++ {
		task, set, _ := newTask(t, cell, false)
		r := Reader{Network: task.Tree, Words: set.Vocabulary(), Labels: set.Labels(), Most: 60}
		lines := 0
		in := "((x) y (z1) (w1 (q) r (x) y))\n(x)\n((a (b\n"
		err := r.Lines(t.Context(), strings.NewReader(in), func(l label.Line) error {
			lines++
			nodes, err := examples.ParseTree([]byte(l.Tree), nil)
			bare := slices.Clone(nodes)
			for i := range bare {
				if bare[i].Label = nil; nodes[i].Label == nil {
					t.Errorf("%q has nodes without labels", l.Tree)
				}
			}
			want := []string{"((x) (y) (z1) ((q) (r) (x) (y)))", "(x)"}[lines-1]
			if got := examples.DrawTree(bare); err != nil || got != want ||
				string(nodes[len(nodes)-1].Label) != l.Labels[0] {
				t.Errorf("%v: %+v, want %s: %v", cell, l, want, err)
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "line 3: column 5: the ( has no )") ||
			lines != 2 {
			t.Errorf("%d lines: %v", lines, err)
		}
	}
}

// TestStops: reading ends with its context.
func TestStops(t *testing.T) {
	task, _, _ := newTask(t, model.TreeRNN, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b batch
	if err := b.fill(ctx, &task.training, train.Span{Lanes: train.Lanes{Count: 1}}); err == nil {
		t.Error("it reads on after its context")
	}
}
