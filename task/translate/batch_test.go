package translate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/task/example"
	"rondo/train"
)

// newData are random pairs, dealt to lanes.
func newData(t *testing.T, pairs, lanes int) example.Data {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	words := func(letter string) string {
		row := make([]string, 1+rng.IntN(9))
		for i := range row {
			row[i] = fmt.Sprint(letter, rng.IntN(5))
		}
		return strings.Join(row, " ")
	}
	var text strings.Builder
	for range pairs {
		text.WriteString(words("s") + "\t" + words("t") + "\n")
	}
	source := filepath.Join(t.TempDir(), "pairs.tsv")
	if err := os.WriteFile(source, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := examples.Open(t.Context(), examples.Config{Source: source, Kind: examples.Pairs,
		Tokenizer: corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None},
		Reserved:  []string{Begin, End}, MaxLength: 9, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	batches, err := examples.NewBatches(set, examples.BatchesConfig{Lanes: lanes, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	return example.Data{Set: set, Batches: batches}
}

// However lanes are dealt, a lane's columns are its pair: the source with its end, the inputs
// behind the token that begins them, and the targets with their end. Lengths, targets and tokens
// are counted as they are read.
func TestBatches(t *testing.T) {
	const pairs, lanes, epochs = 45, 7, 2 // 7 segments, the last with 4 empty lanes
	d := newData(t, pairs, lanes)
	task, err := New(nil, Config{Training: d})
	if err != nil {
		t.Fatal(err)
	}
	if task.source != 10 || task.target != 10 {
		t.Errorf("room for %d and %d steps, want 10", task.source, task.target)
	}
	for _, dealing := range [][]int{{7}, {1, 6}, {3, 3, 1}, {1, 1, 1, 1, 1, 1, 1}} {
		seen, first := make([]int, pairs), 0
		for _, count := range dealing {
			dealt := train.Lanes{First: first, Count: count}
			reader := task.read(t.Context(), &d, train.Spans(epochs*d.Batches.SegmentsPerEpoch(),
				dealt), nil, count)
			for segment := range epochs * d.Batches.SegmentsPerEpoch() {
				b, err := reader.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if reader.At.Segment != segment || reader.At.Lanes != dealt {
					t.Fatalf("%+v, want segment %d of %v", reader.At, segment, dealt)
				}
				checkBatch(t, task, &d, reader.At, b, seen)
			}
			reader.Close()
			first += count
		}
		if slices.Min(seen) != epochs || slices.Max(seen) != epochs {
			t.Errorf("dealt as %d, examples are read %d times; want %d", dealing, seen, epochs)
		}
	}
}

// checkBatch holds a batch against its examples, which it counts.
func checkBatch(
	t *testing.T, task *Task, d *example.Data, at train.Span, b *batch, seen []int,
) {
	t.Helper()
	segment, lanes, in := at.Segment, at.Lanes, &b.in
	if in.SourceSteps != d.Batches.Steps(segment)+1 ||
		in.TargetSteps != d.Batches.TargetSteps(segment)+1 {
		t.Errorf("segment %d: %d and %d steps", segment, in.SourceSteps, in.TargetSteps)
	}
	targets, tokens := int64(0), int64(0)
	for lane := range lanes.Count {
		var source, inputs, labels []int32
		number := d.Batches.Example(segment, lanes.First+lane)
		if number >= 0 {
			seen[number]++
			from, to := make([]int32, d.Set.Length(number)), make([]int32, d.Set.Targets(number))
			if err := d.Set.Read(number, from, to); err != nil {
				t.Fatal(err)
			}
			source = slices.Concat(from, []int32{task.marks.sourceEnd})
			inputs = append([]int32{task.marks.begin}, to...)
			labels = slices.Concat(to, []int32{task.marks.end})
		}
		targets, tokens = targets+int64(len(labels)), tokens+int64(len(source)+len(labels))
		if int(in.SourceLengths[lane]) != len(source) ||
			!slices.Equal(column(in.Source, lane, lanes.Count), pad(source, 0, in.SourceSteps)) ||
			!slices.Equal(column(in.Inputs, lane, lanes.Count), pad(inputs, 0, in.TargetSteps)) ||
			!slices.Equal(column(in.Targets, lane, lanes.Count), pad(labels, -1, in.TargetSteps)) {
			t.Errorf("segment %d, lane %d has example %d as %v, %v, %v of length %d", segment,
				lanes.First+lane, number, column(in.Source, lane, lanes.Count),
				column(in.Inputs, lane, lanes.Count), column(in.Targets, lane, lanes.Count),
				in.SourceLengths[lane])
		}
	}
	if got := task.Targets(segment, lanes); got != targets {
		t.Errorf("segment %d of %v: %d targets, want %d", segment, lanes, got, targets)
	}
	if got := task.Tokens(segment, lanes); got != tokens {
		t.Errorf("segment %d of %v: %d tokens, want %d", segment, lanes, got, tokens)
	}
}

// column is a lane of x: [steps, lanes].
func column(x []int32, lane, lanes int) (ids []int32) {
	for i := lane; i < len(x); i += lanes {
		ids = append(ids, x[i])
	}
	return ids
}

// pad extends ids to n.
func pad(ids []int32, with int32, n int) []int32 {
	return append(ids, slices.Repeat([]int32{with}, n-len(ids))...)
}
