package ngram

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The ways to make probabilities of counts.
const (
	laplace       = "laplace"
	jelinekMercer = "jelinek-mercer"
	kneserNey     = "kneser-ney"
)

// Smoothing gives a probability to n-grams that the training text lacks. c(hw) is the count of the
// history h followed by the token w, c(h) the sum of these over w, and h' is h without its first
// token. The last h' is not even empty: its P is 1/V.
//
//	laplace         P(w|h) = (c(hw) + a) / (c(h) + a V)
//	jelinek-mercer  P(w|h) = a c(hw)/c(h) + (1-a) P(w|h')
//	kneser-ney      P(w|h) = max(c(hw)-a, 0)/c(h) + a n(h)/c(h) P(w|h')
//
// With the last two, P(w|h) is P(w|h') if h was never seen. n(h) is the number of different tokens
// that follow h. In Kneser-Ney, counts of fewer than N
// tokens are continuations: c(hw) is the number of different tokens before hw. Chen and Goodman
// (1998), "An empirical study of smoothing techniques for language modeling", sections 2.1, 2.3 and
// 2.7 (interpolated).
type Smoothing struct {
	way string
	a   float64
}

// ParseSmoothing parses --smoothing: a way, or WAY:NUMBER.
func ParseSmoothing(text string) (Smoothing, error) {
	way, number, given := strings.Cut(text, ":")
	s := Smoothing{way: way, a: map[string]float64{laplace: 1, jelinekMercer: 0.7,
		kneserNey: 0.75}[way]}
	if given {
		var err error
		if s.a, err = strconv.ParseFloat(number, 64); err != nil {
			return s, fmt.Errorf("--smoothing %s: %q is not a number", text, number)
		}
	}
	return s, s.validate()
}

func (s Smoothing) validate() error {
	ways := []string{laplace, jelinekMercer, kneserNey}
	if !slices.Contains(ways, s.way) {
		return fmt.Errorf("--smoothing %q is not one of %s", s.way, strings.Join(ways, ", "))
	}
	most := 1.0
	if s.way == laplace {
		most = math.MaxFloat32
	}
	if !(s.a > 0 && s.a <= most) || s.way == jelinekMercer && s.a == 1 {
		return fmt.Errorf("--smoothing %s:%v: give a number above 0, and for jelinek-mercer "+
			"below 1, for kneser-ney at most 1", s.way, s.a)
	}
	return nil
}

// Estimator makes probabilities of counts.
type Estimator struct {
	config Config
	levels []level // of 1 to N tokens
	// counted is the number of n-grams, repeated ones too.
	counted int64
}

// level has the counts of the n-grams of one length.
type level struct {
	length int
	grams  []int32 // [M, length], sorted
	before []int64 // [M+1]: the sum of the counts before each
}

// newEstimator takes the sorted n-grams and their counts; zero: it was not seen.
func newEstimator(c Config, grams []int32, counts []int64) *Estimator {
	e := &Estimator{config: c, levels: make([]level, c.Order)}
	top := level{length: c.Order, before: []int64{0}}
	for i, n := range counts {
		if n > 0 {
			top.grams = append(top.grams, grams[i*c.Order:(i+1)*c.Order]...)
			top.before = append(top.before, top.before[len(top.before)-1]+n)
		}
	}
	e.counted = top.before[len(top.before)-1]
	e.levels[c.Order-1] = top
	for k := c.Order - 1; k > 0; k-- {
		e.levels[k-1] = e.levels[k].shorter(c.Smoothing.way == kneserNey)
	}
	return e
}

// shorter counts the n-grams without their first token. With continuations each different n-gram
// counts as one.
func (l level) shorter(continuations bool) level {
	rows := make([]int, len(l.before)-1)
	for i := range rows {
		rows[i] = i
	}
	ending := func(row int) []int32 { return l.grams[row*l.length+1 : (row+1)*l.length] }
	slices.SortFunc(rows, func(a, b int) int { return slices.Compare(ending(a), ending(b)) })
	s := level{length: l.length - 1, before: []int64{0}}
	for i, row := range rows {
		if i == 0 || !slices.Equal(ending(rows[i-1]), ending(row)) {
			s.grams = append(s.grams, ending(row)...)
			s.before = append(s.before, s.before[len(s.before)-1])
		}
		n := l.before[row+1] - l.before[row]
		if continuations {
			n = 1
		}
		s.before[len(s.before)-1] += n
	}
	return s
}

// span returns the rows that begin with these tokens: [from, to).
func (l level) span(prefix []int32) (from, to int) {
	search := func(past int) int {
		low, high := 0, len(l.before)-1
		for low < high {
			middle := (low + high) / 2
			row := l.grams[middle*l.length:][:len(prefix)]
			if slices.Compare(row, prefix) < past {
				low = middle + 1
			} else {
				high = middle
			}
		}
		return low
	}
	return search(0), search(1)
}

// Distribution sets p, [V], to the probabilities of the tokens after a history, whose last N-1
// tokens count.
func (e *Estimator) Distribution(history []int32, p []float64) {
	e.blend(history, func(l level, from, to int, own func(count int64) float64, rest float64) {
		for w := range p {
			p[w] *= rest
		}
		for row := from; row < to; row++ {
			p[l.grams[(row+1)*l.length-1]] += own(l.before[row+1] - l.before[row])
		}
	}, func() {
		for w := range p {
			p[w] = 1 / float64(e.config.Vocabulary)
		}
	})
}

// Probability is that of a token after a history.
func (e *Estimator) Probability(history []int32, token int32) (p float64) {
	gram := make([]int32, 0, MaxOrder)
	e.blend(history, func(l level, _, _ int, own func(count int64) float64, rest float64) {
		p *= rest
		gram = append(gram[:0], history[len(history)-l.length+1:]...)
		if from, to := l.span(append(gram, token)); from < to {
			p += own(l.before[to] - l.before[from])
		}
	}, func() { p = 1 / float64(e.config.Vocabulary) })
	return p
}

// blend goes from none to the longest history. start sets the probability without any history, and
// add takes the rows [from, to) of a longer one: a token's probability becomes rest times what it
// was, and own of the token's count more.
func (e *Estimator) blend(history []int32,
	add func(l level, from, to int, own func(count int64) float64, rest float64), start func(),
) {
	start()
	s, V := e.config.Smoothing, float64(e.config.Vocabulary)
	for k := range min(e.config.Order, len(history)+1) {
		l := e.levels[k]
		from, to := l.span(history[len(history)-k:])
		total := float64(l.before[to] - l.before[from])
		if from == to { // longer histories were not seen either
			if s.way == laplace {
				start()
			}
			return
		}
		switch s.way {
		case laplace: // the longest history alone: what came before it is left out
			start()
			norm := total + s.a*V
			add(l, from, to, func(n int64) float64 { return float64(n) / norm }, s.a*V/norm)
		case jelinekMercer:
			add(l, from, to, func(n int64) float64 { return s.a * float64(n) / total }, 1-s.a)
		case kneserNey:
			add(l, from, to, func(n int64) float64 { return max(float64(n)-s.a, 0) / total },
				s.a*float64(to-from)/total)
		}
	}
}
