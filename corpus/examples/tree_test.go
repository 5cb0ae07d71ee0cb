package examples

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"rondo/corpus"
)

func TestParseTree(t *testing.T) {
	for line, want := range map[string]string{
		"(3 (2 a) (1 b))":        "(3 (2 a) (1 b))",
		" ( 3\t(2 a)(1 b) )\r":   "(3 (2 a) (1 b))",
		"(3 a b)":                "(3 (a) (b))",
		"((a) (b))":              "((a) (b))",
		"(a)":                    "(a)",
		"(2 a)":                  "(2 a)",
		"( (S (NP a) (VP b c)))": "(S (NP a) (VP (b) (c)))", // VP has bare words
		"(S (NP (DT (X a))))":    "(S a)",
		"((X (Y a) b))":          "(X (Y a) (b))",
		"(S (1 a) (2 b) (3 c))":  "(S (1 a) (2 b) (3 c))",
		"(1 (7 -LRB-) (8 é))":    "(1 (7 -LRB-) (8 é))",
	} {
		nodes, err := ParseTree([]byte(line), nil)
		if got := DrawTree(nodes); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"(3 (2 a) (1 b)":                    "column 1: the ( has no )",
		"(3 (2 a) (1 b)))":                  "column 16: more behind the tree",
		"(2 a) (2 b)":                       "column 7: another tree",
		"(2 a) b":                           "column 7: more behind",
		"a":                                 "column 1: a tree begins with (",
		")":                                 "column 1: a tree begins with (",
		"(3 (2 a) ())":                      "column 10: nothing in brackets",
		" ":                                 "it has no tree",
		strings.Repeat("(", maxTreeDepth+1): "column 4097: more than 4096 brackets are open",
		"(1" + strings.Repeat(" x", maxTreeNodes+1) + ")": "more than 65536 nodes",
	} {
		if _, err := ParseTree([]byte(line), nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v; want %q", line, err, want)
		}
	}
}

func TestBinarize(t *testing.T) {
	for line, want := range map[string]string{
		"(0 (1 a) b (2 c) d (3 e f g))": "(0 (1 a) ((b) ((2 c) ((d) (3 (e) ((f) (g)))))))",
		"(0 a b)":                       "(0 (a) (b))",
		"(0 a)":                         "(0 a)",
	} {
		nodes, err := ParseTree([]byte(line), nil)
		if got := DrawTree(Binarize(nodes)); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", line, got, err, want)
		}
	}
	for words, want := range map[int]string{1: "(x)", 2: "((x) (x))",
		5: "((((x) (x)) (x)) ((x) (x)))"} {
		var nodes []Node
		for _, k := range Balanced(nil, words) {
			nodes = append(nodes, Node{Word: []byte("x"), Children: int(k)})
		}
		if got := DrawTree(nodes); got != want {
			t.Errorf("%d words: %s, want %s", words, got, want)
		}
	}
}

// TestTrees: the trees of a file come back, binary or not, with their labels and words.
func TestTrees(t *testing.T) {
	const file = "(3 (2 a) (1 b))\n((1 x) a (2 b c))\n(2 b)\n(1 (2 (3 a) q) ((1 a) b a))\n"
	path := write(t, "a.ptb", strings.Replace(file, "((1 x)", "(1 (1 x)", 1))
	want := map[bool][]string{
		false: {"(3 (2 a) (1 b))", "(1 (1 x) (a) (2 (b) (c)))", "(2 b)",
			"(1 (2 (3 a) (q)) ((1 a) (b) (a)))"},
		true: {"(3 (2 a) (1 b))", "(1 (1 x) ((a) (2 (b) (c))))", "(2 b)",
			"(1 (2 (3 a) (q)) ((1 a) ((b) (a))))"},
	}
	for binary, want := range want {
		cfg := config(t, Trees, path)
		cfg.Binary = binary
		s := open(t, cfg)
		if got := s.Labels(); !slices.Equal(got, []string{"1", "2", "3"}) {
			t.Errorf("labels %q", got)
		}
		var got []string
		for i := range s.Len() {
			ids, labels := make([]int32, s.Length(i)), make([]int32, s.Targets(i))
			if err := s.Read(i, ids, labels); err != nil {
				t.Fatal(err)
			}
			var nodes []Node
			for _, id := range ids {
				word, children, labelled := NodeOf(id, s.Vocabulary().Len())
				n := Node{Children: int(children)}
				if children == 0 {
					n.Word = []byte(s.Vocabulary().Token(word))
				}
				if labelled {
					n.Label, labels = []byte(s.Labels()[labels[0]]), labels[1:]
				}
				nodes = append(nodes, n)
			}
			if again := NodeIDs(s.Vocabulary(), nodes); len(labels) > 0 ||
				!slices.Equal(again, ids) {
				t.Errorf("%v is %v", ids, again)
			}
			got = append(got, DrawTree(nodes))
		}
		if !slices.Equal(got, want) {
			t.Errorf("binary %v: %q, want %q", binary, got, want)
		}
	}
	cfg := config(t, Trees, path)
	cfg.MinFrequency = 2
	if s := open(t, cfg); !slices.Equal(s.Vocabulary().Tokens(), []string{corpus.Unknown, "a",
		"b"}) {
		t.Errorf("vocabulary %q", s.Vocabulary().Tokens())
	}
}

// FuzzTree: any line is refused in one line, or is a tree that comes back as it is written.
func FuzzTree(f *testing.F) {
	for _, line := range []string{"(3 (2 a) (1 b))", "((1 x) a (2 b c))", "((a))", "(a", "()",
		"a)"} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		nodes, err := ParseTree(line, nil)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("more than a line: %q", err)
			}
			return
		}
		if bytes.ContainsAny(line, "\n") {
			return
		}
		for _, all := range [][]Node{nodes, Binarize(nodes)} {
			open, leaves := 0, 0
			for _, n := range all {
				if open++; n.Children > 0 {
					open -= n.Children
				} else {
					leaves++
				}
				if n.Children == 1 || open < 1 {
					t.Fatalf("%v", all)
				}
			}
			if open != 1 || leaves == 0 {
				t.Fatalf("%d trees of %d leaves", open, leaves)
			}
			again, err := ParseTree([]byte(DrawTree(all)), nil)
			if err != nil || DrawTree(again) != DrawTree(all) {
				t.Fatalf("%q came back as %q, %v", DrawTree(all), DrawTree(again), err)
			}
		}
	})
}
