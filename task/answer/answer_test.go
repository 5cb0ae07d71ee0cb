package answer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/task/example"
	"rondo/task/lines"
	"rondo/task/memory"
	"rondo/task/tasktest"
	"rondo/train"
)

const told = "1 Mary went home\n2 John left\n3 Where is Mary? \thome\t1\n4 Mary left again\n" +
	"5 Where is Mary?\taway\t4\n1 Who is there?\tJohn\n"

// openStories are the examples of a text.
func openStories(t *testing.T, text string) (*examples.Set, *Stories) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.txt")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := examples.Open(t.Context(), examples.Config{Source: path, Kind: examples.Stories,
		Tokenizer: corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None}, MaxLength: 100,
		Reserved: []string{examples.Stop}, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	batches, err := examples.NewEvaluation(set, 2)
	if err != nil {
		t.Fatal(err)
	}
	return set, &Stories{Data: example.Data{Set: set, Batches: batches},
		Stop: set.Vocabulary().ID(examples.Stop)}
}

// TestStories: an example is the sentences before a question, without the other questions.
func TestStories(t *testing.T) {
	set, stories := openStories(t, told)
	words := func(ids []int32) string {
		var all []string
		for _, id := range ids {
			all = append(all, set.Vocabulary().Token(id))
		}
		return strings.Join(all, " ")
	}
	got := map[string]string{}
	var s Story // its memory is used again
	for segment := range stories.SegmentsPerEpoch() {
		for lane := range 2 {
			ids, ok, err := stories.Fill(segment, lane, &s)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				continue
			}
			var sentences []string
			for _, sentence := range s.Sentences {
				sentences = append(sentences, words(sentence))
			}
			got[words(s.Question)+" "+set.Labels()[s.Answer]] = strings.Join(sentences, ", ")
			at := train.Lanes{First: lane, Count: 1}
			if n := stories.Tokens(segment, at); int64(len(ids)) != n+1 ||
				stories.Targets(segment, at) != 1 {
				t.Errorf("%d ids for %d words", len(ids), n)
			}
		}
	}
	want := map[string]string{
		"Where is Mary home": "Mary went home, John left",
		"Where is Mary away": "Mary went home, John left, Mary left again",
		"Who is there John":  "",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestDrawKeys: the draws of an example that is trained on depend on its segment and lane, and on
// the seed.
func TestDrawKeys(t *testing.T) {
	_, stories := openStories(t, told)
	keys := map[uint64]bool{}
	for seed := range uint64(3) {
		stories.Seed = &seed
		for range 2 { // the same keys again
			for segment := range stories.SegmentsPerEpoch() {
				for lane := range 2 {
					var s Story
					if _, ok, err := stories.Fill(segment, lane, &s); err != nil {
						t.Fatal(err)
					} else if ok {
						keys[s.Draw] = true
					}
				}
			}
		}
	}
	if len(keys) != 3*3 || keys[0] {
		t.Errorf("keys %v", keys)
	}
}

// TestReader: questions are answered about the story so far, as Forward scores them.
func TestReader(t *testing.T) {
	set, stories := openStories(t, told)
	m, err := memory.NewModel(memory.Network[Story](Config{Words: set.Vocabulary().Len(),
		Answers: 3, Hidden: 6, Hops: 2, Rows: 2, Position: true, Temporal: true, Seed: 3}),
		tasktest.Device(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tokenizer := corpus.Tokenizer{Unit: corpus.Word, Normalize: corpus.None}
	read := func(text string) (all []Answer, err error) {
		r := NewReader(m, set.Labels(), func(line string) ([]int32, error) {
			return set.Vocabulary().Encode(tokenizer, line)
		}, 4)
		err = r.Lines(t.Context(), strings.NewReader(text), func(a Answer) error {
			all = append(all, a)
			return nil
		})
		return all, err
	}
	got, err := read("John is there.\n\nMary went home.\n John left \nWhere is Mary?\n" +
		"Mary left again!\n5 Where is Mary?\taway\t4\n1 Who is there?\n")
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	for i, a := range got {
		var s Story
		number := []int64{1, 2, 0}[i] // an evaluation's examples are sorted by length
		if _, _, err := stories.Fill(number/2, int(number%2), &s); err != nil {
			t.Fatal(err)
		}
		for label, name := range set.Labels() {
			if name == a.Answer {
				s.Answer = int32(label)
			}
		}
		loss := m.NewPass().Forward(m.Params(), &s).Loss
		if math.Abs(math.Exp(-loss)-float64(a.Probability)) > 1e-6 {
			t.Errorf("%+v: the network has a probability of %v", a, math.Exp(-loss))
		}
		if n := 2 * min(1, len(s.Sentences)); len(a.Attention) != n {
			t.Errorf("%+v: %d sentences, want %d", a, len(a.Attention), n)
		}
	}
	kept := got[1].Attention[0].Sentence // the memory has two rows
	if kept != "John left" && kept != "Mary left again!" {
		t.Errorf("%q is forgotten", kept)
	}
	for text, want := range map[string]string{
		"Mary left.\n ?\n":          "line 2: it has no word",
		"a b c d e\n":               "line 1: it has 5 tokens",
		"Mary left.\n3 ...\nWho?\n": "line 2: it has no word",
	} {
		_, err := read(text)
		if wrong, is := errors.AsType[*lines.Error](err); !is || !strings.Contains(wrong.Error(),
			want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	r := NewReader(m, set.Labels(), func(string) ([]int32, error) { return []int32{1}, nil }, 4)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Lines(ctx, strings.NewReader("a\nb?\n"), nil); err == nil {
		t.Error("it reads on after its context")
	}
}
