package answer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"rondo/corpus/examples"
	"rondo/task/lines"
	"rondo/task/memory"
)

// Answer is the answer to a question.
type Answer struct {
	Question    string  `json:"question"`
	Answer      string  `json:"answer"`
	Probability float32 `json:"probability"`
	// Attention is what each hop has attended to most.
	Attention []Attention `json:"attention"`
}

// Attention is the sentence with the largest weight in a hop.
type Attention struct {
	Sentence string  `json:"sentence"`
	Weight   float32 `json:"weight"`
}

// Reader answers the questions of a text: lines that end with a question mark, about the lines
// before them. An empty line begins another story, and so does the number 1 before a sentence.
type Reader struct {
	model   *memory.Model[Story]
	pass    *pass[float32]
	answers []string
	encode  func(line string) ([]int32, error)
	most    int // words of a line
	texts   []string
	story   Story
}

// NewReader makes a reader. encode returns a line's words.
func NewReader(
	m *memory.Model[Story], answers []string, encode func(line string) ([]int32, error), most int,
) *Reader {
	return &Reader{model: m, pass: m.NewPass().(*pass[float32]), answers: answers, encode: encode,
		most: most}
}

// Lines reads a text: see lines.Reader.
func (r *Reader) Lines(ctx context.Context, in io.Reader, each func(Answer) error) error {
	reader := lines.Reader{Most: r.most, Together: 1, Blank: true,
		Encode: func(line string) ([]int32, error) {
			_, text := sentence(line)
			ids, err := r.encode(string(examples.Sentence([]byte(text))))
			if err == nil && len(ids) == 0 && strings.TrimSpace(line) != "" {
				err = errors.New("it has no word")
			}
			return ids, err
		}}
	return reader.Read(ctx, in, func(texts []string, words [][]int32) error {
		for i, text := range texts {
			answer, err := r.read(text, words[i])
			if err != nil {
				return err
			}
			if answer != nil {
				if err := each(*answer); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// number divides a line into a number of digits and the rest.
func number(line string) (digits, rest string) {
	line = strings.TrimSpace(line)
	rest = strings.TrimLeft(line, "0123456789")
	if digits = line[:len(line)-len(rest)]; !strings.HasPrefix(rest, " ") {
		return "", line
	}
	return digits, strings.TrimSpace(rest)
}

// sentence divides a line of a story into its number and its sentence; an answer behind a question
// does not count.
func sentence(line string) (digits, text string) {
	line, _, _ = strings.Cut(line, "\t")
	return number(line)
}

// maxSentences bounds a story, of which the network reads the last.
const maxSentences = 1 << 16

// read takes a line, and answers it if it is a question.
func (r *Reader) read(line string, words []int32) (*Answer, error) {
	digits, text := sentence(line)
	if text == "" || digits == "1" {
		r.texts, r.story.Sentences = nil, nil
	}
	if text == "" {
		return nil, nil
	}
	if !strings.HasSuffix(text, "?") {
		if len(r.texts) == maxSentences {
			return nil, fmt.Errorf("the story has more than %d sentences: begin another by an "+
				"empty line", maxSentences)
		}
		r.texts, r.story.Sentences = append(r.texts, text), append(r.story.Sentences, words)
		return nil, nil
	}
	r.story.Question = words
	best, probability, attended := r.answer()
	a := &Answer{Question: text, Answer: r.answers[best], Probability: probability}
	for _, at := range attended {
		a.Attention = append(a.Attention, Attention{r.texts[at.sentence], at.weight})
	}
	return a, nil
}

// attended is the sentence that a hop has attended to most.
type attended struct {
	sentence int
	weight   float32
}

// answer computes the answer to the story's question.
func (r *Reader) answer() (best int, probability float32, hops []attended) {
	p := r.pass
	w := split(p.Config, p.views, r.model.Params())
	p.remember(w, &r.story)
	p.paths.begin(&r.story)
	p.answer(w, 0)
	memory.Softmax(p.logits, p.logits)
	for i, x := range p.logits {
		if x > probability {
			best, probability = i, x
		}
	}
	first := len(r.story.Sentences) - len(p.kept)
	for hop := range p.Hops {
		var most attended
		for i, w := range p.weights[hop][:len(p.kept)] {
			if w > most.weight {
				most = attended{first + i, w}
			}
		}
		if len(p.kept) > 0 {
			hops = append(hops, most)
		}
	}
	return best, probability, hops
}
