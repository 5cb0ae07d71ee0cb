package translate

import (
	"regexp"
	"strings"
)

// words13a cuts texts into words as sacreBLEU's tokenizer 13a does (Post 2018, arXiv:1804.08771;
// NIST's mteval-v13a.pl): punctuation stands alone, except within a number.
type words13a struct {
	replaced [][2]string // in turn
	rules    []rule
}

type rule struct {
	find *regexp.Regexp
	put  string
}

func newWords13a() *words13a {
	w := &words13a{replaced: [][2]string{{"<skipped>", ""}, {"-\n", ""}, {"\n", " "},
		{"&quot;", `"`}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}}}
	for _, r := range [][2]string{
		{"([{-~[-` -&(-+:-@/])", " ${1} "},
		{`([^0-9])([.,])`, "${1} ${2} "},
		{`([.,])([^0-9])`, " ${1} ${2}"},
		{`([0-9])(-)`, "${1} ${2} "},
	} {
		w.rules = append(w.rules, rule{regexp.MustCompile(r[0]), r[1]})
	}
	return w
}

// cut returns a text's words.
func (w *words13a) cut(text string) []string {
	for _, r := range w.replaced {
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	text = " " + text + " "
	for _, r := range w.rules {
		text = r.find.ReplaceAllString(text, r.put)
	}
	return strings.Fields(text)
}

// count adds a translation and its reference to the counts of BLEU over their words.
func (w *words13a) count(counts []int64, translation, reference string) {
	numbers := map[string]int32{}
	number := func(text string) (ids []int32) {
		for _, word := range w.cut(text) {
			id, known := numbers[word]
			if !known {
				id = int32(len(numbers))
				numbers[word] = id
			}
			ids = append(ids, id)
		}
		return ids
	}
	countBLEU(counts, number(translation), number(reference))
}
