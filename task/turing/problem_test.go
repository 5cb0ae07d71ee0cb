package turing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"rondo/train"
)

func parse(t *testing.T, name string, stream uint64) Problem {
	t.Helper()
	p, err := ParseProblem(name, 7, stream)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rows are the first columns of some rows of a matrix as text, with 0 for -1.
func rows(values []float32, width, columns int) (all []string) {
	for i := 0; i < len(values); i += width {
		all = append(all, strings.ReplaceAll(fmt.Sprint(values[i:][:columns]), "-1", "0"))
	}
	return all
}

// TestProblems: sequences are the problem's, with every length in its range.
func TestProblems(t *testing.T) {
	for name, check := range map[string]func(p Problem, e *Example) (length int, ok bool){
		"builtin:copy:2-5": func(p Problem, e *Example) (int, bool) {
			in, out := rows(e.Inputs, p.inputs, bits), rows(e.Targets, p.outputs, bits)
			n := len(out)
			flags := rows(e.Inputs, p.inputs, p.inputs)
			return n, slices.Equal(in[:n], out) && strings.HasSuffix(flags[n], " 1]") &&
				!slices.ContainsFunc(slices.Delete(flags, n, n+1), func(s string) bool {
					return strings.HasSuffix(s, " 1]")
				})
		},
		"builtin:repeat-copy:2-5x3-4": func(p Problem, e *Example) (int, bool) {
			n := e.First - 1
			in, out := rows(e.Inputs, p.inputs, bits), rows(e.Targets, p.outputs, p.outputs)
			repeats := (len(out) - 1) / n
			for i, row := range out[:len(out)-1] {
				if row != strings.TrimSuffix(in[i%n], "]")+" 0]" {
					return 0, false
				}
			}
			count := e.Inputs[n*p.inputs+bits+1] * mostRepeated
			return n, len(out) == n*repeats+1 && repeats >= 3 && repeats <= 4 &&
				int(count+0.5) == repeats && strings.HasSuffix(out[n*repeats], " 1]")
		},
		"builtin:recall:2-5": func(p Problem, e *Example) (int, bool) {
			in, out := rows(e.Inputs, p.inputs, itemBits), rows(e.Targets, p.outputs, itemBits)
			n := (e.First - 5) / 4
			query := in[4*n+1:][:3]
			for i := range n - 1 {
				if slices.Equal(in[4*i+1:][:3], query) && slices.Equal(in[4*i+5:][:3], out) {
					return n, e.Inputs[4*i*p.inputs+itemBits] == 1 &&
						e.Inputs[4*n*p.inputs+itemBits+1] == 1 &&
						e.Inputs[(4*n+4)*p.inputs+itemBits+1] == 1
				}
			}
			return n, false
		},
	} {
		p := parse(t, name, Training)
		lengths, longest := map[int]int{}, 0
		var e Example
		for number := range int64(200) {
			p.Fill(number, &e)
			n, ok := check(p, &e)
			if !ok {
				t.Fatalf("%s: sequence %d is %v with targets %v", name, number, e.Inputs, e.Targets)
			}
			lengths[n]++
			longest = max(longest, len(e.Inputs)/p.inputs)
			steps, first := p.Size(number)
			if steps*p.inputs != len(e.Inputs) || first != e.First ||
				(steps-first)*p.outputs != len(e.Targets) {
				t.Fatalf("%s: sequence %d has other sizes than %d, %d", name, number, steps, first)
			}
		}
		if len(lengths) != 4 || longest != p.LongestSteps() {
			t.Errorf("%s: lengths %v, %d steps", name, lengths, longest)
		}
		if len(p.InputNames()) != p.inputs || len(p.OutputNames()) != p.outputs {
			t.Errorf("%s: %q, %q", name, p.InputNames(), p.OutputNames())
		}
	}
}

// TestProblemsNeverChange: a resumed job goes on with the same sequences.
func TestProblemsNeverChange(t *testing.T) {
	var e Example
	parse(t, "builtin:copy:1-20", Training).Fill(5, &e)
	const want = "10 [[1 1 1 1 1 1 1 1] [0 0 1 0 1 1 0 0]]"
	if got := fmt.Sprint(e.First, rows(e.Targets, bits, bits)[:2]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var other Example
	parse(t, "builtin:copy:1-20", Evaluation).Fill(5, &other)
	if slices.Equal(e.Inputs, other.Inputs) {
		t.Error("an evaluation has the sequences of training")
	}
}

// TestNames: a problem is named with its lengths, or without.
func TestNames(t *testing.T) {
	for name, want := range map[string][4]int{
		"builtin:copy":               {1, 20, 0, 0},
		"builtin:copy:40":            {40, 40, 0, 0},
		"builtin:repeat-copy":        {1, 10, 1, 10},
		"builtin:repeat-copy:3-9x20": {3, 9, 20, 20},
		"builtin:recall:2-1000":      {2, 1000, 0, 0},
	} {
		p := parse(t, name, Training)
		if got := [4]int{p.least, p.most, p.leastRepeats, p.mostRepeats}; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"copy":                   "reads generated sequences: give builtin:copy:1-20 or",
		"builtin:sort":           "reads generated sequences",
		"builtin:copy:":          `"" is no range`,
		"builtin:copy:20-1":      `"20-1" is no range`,
		"builtin:copy:1-1001":    "of 1 to 1000",
		"builtin:recall:1":       "of 2 to 1000, such as 2-20",
		"builtin:copy:3x3":       "give LENGTHS, or",
		"builtin:repeat-copy:3":  "LENGTHSxREPEATS",
		"builtin:repeat-copy:3x": `"" is no range`,
	} {
		if _, err := ParseProblem(name, 1, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestSequences: lanes read each sequence once, training without end, an evaluation all of its own.
func TestSequences(t *testing.T) {
	p := parse(t, "builtin:copy:1-5", Training)
	for _, s := range []*Sequences{NewTraining(p, 12), NewEvaluation(p, 12)} {
		seen := map[string]bool{}
		count := 0
		for segment := range min(s.SegmentsPerEpoch(), 50) {
			targets, steps := int64(0), int64(0)
			for lane := range 12 {
				var e Example
				ids, ok, err := s.Fill(segment, lane, &e)
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					count++
					seen[fmt.Sprint(ids)] = true
					targets += int64(len(e.Targets))
					steps += int64(len(ids) / p.inputs)
				}
			}
			lanes := train.Lanes{Count: 12}
			if s.Targets(segment, lanes) != targets || s.Tokens(segment, lanes) != steps {
				t.Fatalf("segment %d: %d targets, %d steps", segment, targets, steps)
			}
		}
		want := evaluated
		if s.count < 0 {
			want = 50 * 12
			if got := s.Steps(); got != 7*12*perEpoch {
				t.Errorf("%d steps", got)
			}
		}
		if count != want || len(seen) < want*4/5 { // few of a single vector are the same
			t.Errorf("%d sequences, %d different ones; want %d", count, len(seen), want)
		}
	}
}
