package corpus

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestVocabularyInJSON(t *testing.T) {
	v, err := NewVocabulary([]string{Unknown, " ", "\n", "é", "\"", "日本", "\ufffd"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var back Vocabulary
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(back.Tokens(), v.Tokens()) || back.Fingerprint() != v.Fingerprint() {
		t.Errorf("%s came back as %q", text, back.Tokens())
	}
	for id := range int32(v.Len()) {
		if back.ID(v.Token(id)) != id {
			t.Errorf("token %q has id %d; want %d", v.Token(id), back.ID(v.Token(id)), id)
		}
	}
	if v.ID("z") != 0 {
		t.Error("an unknown token has an id")
	}
	for bad, want := range map[string]string{
		`[]`: Unknown, `["a"]`: Unknown, `{}`: "vocabulary", `["<unk>",""]`: "token 1",
		`["<unk>","a","b","a"]`: "1 and 3", `["<unk>",7]`: "vocabulary",
	} {
		err := json.Unmarshal([]byte(bad), new(Vocabulary))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestFingerprintsTellVocabulariesApart(t *testing.T) {
	seen := map[string][]string{}
	for _, tokens := range [][]string{
		{Unknown}, {Unknown, "a", "b"}, {Unknown, "b", "a"}, {Unknown, "ab"}, {Unknown, "a,1:b"},
	} {
		v, err := NewVocabulary(tokens)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[v.Fingerprint()]; ok {
			t.Errorf("%q and %q have one fingerprint", tokens, other)
		}
		seen[v.Fingerprint()] = tokens
	}
}

func TestEncodeAndDecode(t *testing.T) {
	v, err := NewVocabulary([]string{Unknown, "to", "be", "t", "o", " ", "b", "e"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tokenizer Tokenizer
		text      string
		ids       []int32
		back      string
	}{
		{split(Word, None), "to  be\nor to", []int32{1, 2, 0, 1}, "to be <unk> to"},
		{split(Word, Letters), "To-be", []int32{1, 2}, "to be"},
		{split(Char, None), "to Be", []int32{3, 4, 5, 0, 7}, "to <unk>e"},
		{split(Char, Letters), " To, be! ", []int32{3, 4, 5, 6, 7}, "to be"},
		{split(Char, None), "", nil, ""},
	} {
		ids, err := v.Encode(c.tokenizer, c.text)
		if err != nil || !slices.Equal(ids, c.ids) {
			t.Errorf("%v of %q: %v, %v; want %v", c.tokenizer, c.text, ids, err, c.ids)
		}
		if back := v.Decode(c.tokenizer, ids); back != c.back {
			t.Errorf("%v of %q comes back as %q", c.tokenizer, c.text, back)
		}
	}
	if _, err := v.Encode(split(Char, None), "a\xff"); err == nil {
		t.Error("invalid UTF-8 is no error")
	}
	if _, err := v.Encode(Tokenizer{}, "a"); err == nil {
		t.Error("no tokenizer is no error")
	}
}
