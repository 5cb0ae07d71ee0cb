package turing

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"rondo/corpus"
)

// Prefix begins the name of a problem as a --corpus.
const Prefix = "builtin:"

// Example is a sequence. The network reads Inputs, [T, D], and predicts the bits Targets,
// [T-First, O], in the steps from First on. The inputs of bits are -1 and 1: 0 is no input, so that
// a vector of bits 0 is not mistaken for the end.
type Example struct {
	Inputs, Targets []float32
	First           int
}

// kind is a family of problems.
type kind struct {
	name            string
	shortest        int // length, of any sequence
	longest         int // of the default's
	repeats         int // the default's most; 0: there are no repeats
	inputs, outputs int // D, O
}

// Widths of the sequences' vectors.
const (
	bits      = 8
	itemBits  = 6
	itemSteps = 3 // vectors of an item
)

// most bounds lengths and repeats.
const most = 1000

// kinds are the problems of Graves et al. 2014, section 4, with the lengths of their training: to
// repeat random vectors after their end; to repeat them a number of times, and then to say so; and
// to give the item of a list behind the one that is asked for.
func kinds() []kind {
	return []kind{
		{"copy", 1, 20, 0, bits + 1, bits},
		{"repeat-copy", 1, 10, 10, bits + 2, bits + 1},
		{"recall", 2, 6, 0, itemBits + 2, itemBits},
	}
}

// Problem generates sequences: those of a seed are a pure function of their numbers.
type Problem struct {
	kind
	least, most               int // length: vectors, or items
	leastRepeats, mostRepeats int
	key                       uint64
}

// ParseProblem parses builtin:copy, builtin:copy:20, builtin:copy:1-20 and
// builtin:repeat-copy:1-10x1-10. Sequences of different streams differ.
func ParseProblem(name string, seed, stream uint64) (p Problem, err error) {
	text, builtin := strings.CutPrefix(name, Prefix)
	text, ranges, given := strings.Cut(text, ":")
	var known []string
	for _, k := range kinds() {
		if builtin && k.name == text {
			p = Problem{kind: k, least: k.shortest, most: k.longest, mostRepeats: k.repeats,
				leastRepeats: min(1, k.repeats)}
		}
		example := fmt.Sprintf("%s%s:%d-%d", Prefix, k.name, k.shortest, k.longest)
		if k.repeats > 0 {
			example += fmt.Sprintf("x1-%d", k.repeats)
		}
		known = append(known, example)
	}
	if p.name == "" {
		return p, fmt.Errorf("--corpus %q: --task turing reads generated sequences: give %s, or "+
			"other lengths", name, strings.Join(known, " or "))
	}
	p.key = corpus.Hash3(seed, stream, 0)
	if !given {
		return p, nil
	}
	lengths, repeats, repeated := strings.Cut(ranges, "x")
	p.least, p.most, err = parseRange(lengths, p.shortest)
	if err == nil && repeated {
		p.leastRepeats, p.mostRepeats, err = parseRange(repeats, 1)
	}
	if err == nil && repeated != (p.repeats > 0) {
		err = fmt.Errorf("give LENGTHS, or for repeat-copy LENGTHSxREPEATS")
	}
	if err != nil {
		return p, fmt.Errorf("--corpus %q: %w", name, err)
	}
	return p, nil
}

// parseRange parses 20 or 1-20.
func parseRange(text string, least int) (from, to int, err error) {
	a, b, is := strings.Cut(text, "-")
	if !is {
		b = a
	}
	from, err = strconv.Atoi(a)
	if err == nil {
		to, err = strconv.Atoi(b)
	}
	if err != nil || from < least || to < from || to > most {
		return 0, 0, fmt.Errorf("%q is no range of whole numbers of %d to %d, such as %d-20", text,
			least, most, least)
	}
	return from, to, nil
}

// shape draws a sequence's length and repeats.
func (p Problem) shape(number int64) (rng *rand.Rand, length, repeats int) {
	rng = rand.New(rand.NewPCG(p.key, uint64(number)))
	length = p.least + rng.IntN(p.most-p.least+1)
	repeats = p.leastRepeats + rng.IntN(p.mostRepeats-p.leastRepeats+1)
	return rng, length, repeats
}

// Size returns the steps of a sequence, and its first with targets.
func (p Problem) Size(number int64) (steps, first int) {
	_, length, repeats := p.shape(number)
	return p.size(length, repeats)
}

func (p Problem) size(length, repeats int) (steps, first int) {
	switch p.name {
	case "copy":
		return 2*length + 1, length + 1
	case "repeat-copy":
		return length + 1 + length*repeats + 1, length + 1
	}
	first = length*(1+itemSteps) + itemSteps + 2
	return first + itemSteps, first
}

// meanSteps is the mean number of steps: it grows linearly with the length and with the repeats.
func (p Problem) meanSteps() (mean float64) {
	for _, length := range []int{p.least, p.most} {
		for _, repeats := range []int{p.leastRepeats, p.mostRepeats} {
			steps, _ := p.size(length, repeats)
			mean += float64(steps) / 4
		}
	}
	return mean
}

// InputNames name the columns of inputs.
func (p Problem) InputNames() []string {
	flags := map[string][]string{"copy": {"end"}, "repeat-copy": {"end", "repeats"},
		"recall": {"item", "query"}}[p.name]
	return append(bitNames(p.inputs-len(flags)), flags...)
}

// OutputNames name the columns of targets.
func (p Problem) OutputNames() []string {
	if p.name == "repeat-copy" {
		return append(bitNames(bits), "end")
	}
	return bitNames(p.outputs)
}

func bitNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("bit %d", i+1))
	}
	return names
}

// LongestSteps is the most steps of a sequence.
func (p Problem) LongestSteps() int {
	steps, _ := p.size(p.most, p.mostRepeats)
	return steps
}

// mostRepeated scales the number of repeats for the network, as the largest of training is 10.
const mostRepeated = 10

// Fill generates a sequence.
func (p Problem) Fill(number int64, e *Example) {
	rng, length, repeats := p.shape(number)
	steps, first := p.size(length, repeats)
	e.First = first
	e.Inputs = cleared(e.Inputs, steps*p.inputs)
	e.Targets = cleared(e.Targets, (steps-first)*p.outputs)
	row := func(t int) []float32 { return e.Inputs[t*p.inputs:][:p.inputs] }
	draw := func(t, n int) {
		for i := range n {
			row(t)[i] = float32(2*rng.IntN(2) - 1)
		}
	}
	if p.name == "recall" {
		p.recall(rng, length, e, row, draw)
		return
	}
	for t := range length {
		draw(t, bits)
	}
	row(length)[bits] = 1 // the end
	if p.repeats > 0 {
		row(length)[bits+1] = float32(repeats) / mostRepeated
		e.Targets[len(e.Targets)-1] = 1 // the end of the output
	}
	for i := range max(repeats, 1) * length {
		answer(e.Targets[i*p.outputs:], row(i % length)[:bits])
	}
}

// answer sets targets to the bits of an input.
func answer(targets, input []float32) {
	for i, x := range input {
		targets[i] = (x + 1) / 2
	}
}

// recall generates items, each behind a flag, then one of them between two flags of another kind.
func (p Problem) recall(
	rng *rand.Rand, length int, e *Example, row func(t int) []float32, draw func(t, n int),
) {
	const item = 1 + itemSteps
	for i := range length {
		row(i * item)[itemBits] = 1
		for k := range itemSteps {
			draw(i*item+1+k, itemBits)
		}
	}
	asked, query := rng.IntN(length-1), length*item
	row(query)[itemBits+1] = 1
	row(query + itemSteps + 1)[itemBits+1] = 1
	for k := range itemSteps {
		copy(row(query + 1 + k)[:itemBits], row(asked*item+1+k))
		answer(e.Targets[k*itemBits:], row((asked+1)*item + 1 + k)[:itemBits])
	}
}

// cleared returns n zeros, in x if it has room.
func cleared(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	x = x[:n]
	clear(x)
	return x
}
