package fill

import (
	"reflect"
	"strings"
	"testing"

	"rondo/corpus"
)

// The marks of a line are blanks, and the text beside them keeps its spaces, however it is
// normalised.
func TestEncode(t *testing.T) {
	v := vocabulary(t)
	for _, c := range []struct {
		unit      corpus.Unit
		normalize corpus.Normalization
		mark      string
		line      string
		want      string
		blanks    []int
	}{
		{corpus.Char, corpus.None, "_", "a_b", "a?b", []int{1}},
		{corpus.Char, corpus.Letters, "_", "A _ b_", "a ? b?", []int{2, 5}},
		{corpus.Char, corpus.Letters, "_", "__", "??", []int{0, 1}},
		{corpus.Char, corpus.Letters, "_", "a b", "a b", nil},
		{corpus.Word, corpus.None, "_", "a _ c", "a?c", []int{1}},
		{corpus.Word, corpus.None, "[?]", "[?] a[?]", "?a?", []int{0, 2}},
		{corpus.Word, corpus.Punctuation, "_", "A _. B", "a?<unk>b", []int{1}},
	} {
		f := Filler{Vocabulary: v, Tokenizer: corpus.Tokenizer{Unit: c.unit,
			Normalize: c.normalize}, Mark: c.mark}
		ids, blanks, err := f.encode(c.line)
		got := ""
		for _, id := range ids {
			got += strings.Replace(v.Token(id), Blank, "?", 1)
		}
		if err != nil || got != c.want || !reflect.DeepEqual(blanks, c.blanks) {
			t.Errorf("%+v: %q, blanks %v, %v", c, got, blanks, err)
		}
	}
	long := strings.Repeat("a ", MaxTokens+1)
	f := Filler{Vocabulary: v, Tokenizer: corpus.Tokenizer{Unit: corpus.Word,
		Normalize: corpus.None}, Mark: "_"}
	if _, _, err := f.encode(long); err == nil || !strings.Contains(err.Error(), "513 tokens") {
		t.Errorf("a long line: %v", err)
	}
}

// Lines fills each mark with the likeliest token but Unknown and Blank, and leaves the rest of the
// line as it is. Empty lines stay.
func TestLines(t *testing.T) {
	l := newLabeller(t, 0)
	for _, v := range l.Config().Layout() {
		if v.Name == "output.bias" {
			copy(l.Params()[v.Offset:], []float32{9, 8}) // Unknown and Blank are the likeliest
		}
	}
	p := NewPredictor(l, vocabulary(t))
	defer p.Close()
	f := Filler{Predictor: p, Vocabulary: vocabulary(t), Mark: "_",
		Tokenizer: corpus.Tokenizer{Unit: corpus.Char, Normalize: corpus.Letters}}
	var got []Line
	err := f.Lines(t.Context(), strings.NewReader("\nA _C, _\n\nb\n"), func(line Line) error {
		got = append(got, line)
		return nil
	})
	if err != nil || len(got) != 4 {
		t.Fatalf("%+v, %v", got, err)
	}
	predicted, err := p.Predict([][]int32{{2, 5, 1, 4, 5, 1}})
	if err != nil {
		t.Fatal(err)
	}
	first, second := f.Vocabulary.Token(predicted[0].Labels[2]),
		f.Vocabulary.Token(predicted[0].Labels[5])
	want := Line{Text: "A _C, _", Filled: "A " + first + "C, " + second,
		Tokens: []string{first, second}, Probabilities: []float32{
			predicted[0].Probabilities[2], predicted[0].Probabilities[5]}}
	none := func(text string) Line { // JSON: [], not null
		return Line{Text: text, Filled: text, Tokens: []string{}, Probabilities: []float32{}}
	}
	if !reflect.DeepEqual(got, []Line{none(""), want, none(""), none("b")}) {
		t.Errorf("%+v, want %+v and b", got, want)
	}
	if predicted[0].Labels[2] < 2 || predicted[0].Labels[5] < 2 {
		t.Errorf("labels %v are reserved", predicted[0].Labels)
	}
}
