package bench

import (
	"strings"
	"testing"

	"rondo/compute"
)

func TestFlops(t *testing.T) {
	base := Shape{Cell: compute.LSTM, Hidden: 256, Layers: 1, Batch: 32, BPTT: 35, Vocab: 28}
	change := func(f func(s *Shape)) Shape {
		s := base
		f(&s)
		return s
	}
	for name, c := range map[string]struct {
		s    Shape
		want float64
	}{
		// 4 gates of 256 by 256, and 28 tokens; each product forward and twice backward.
		"lstm":       {base, 6 * (4*256*256 + 256*28)},
		"gru":        {change(func(s *Shape) { s.Cell = compute.GRU }), 6 * (3*256*256 + 256*28)},
		"rnn":        {change(func(s *Shape) { s.Cell = compute.RNNTanh }), 6 * (256*256 + 256*28)},
		"two layers": {change(func(s *Shape) { s.Layers = 2 }), 6 * (3*4*256*256 + 256*28)},
		"embedded": {change(func(s *Shape) { s.Embed = 100 }),
			6 * (4*256*(256+100) + 256*28)},
	} {
		if got := c.s.Flops(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestSetsAreValid(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range append(Textbook(), Large()...) {
		if err := s.Validate(); err != nil {
			t.Errorf("%v: %v", s, err)
		}
		if seen[s.String()] {
			t.Errorf("%v is there twice", s)
		}
		seen[s.String()] = true
	}
	for _, want := range []string{"lstm H256 L1 B32 T35 V28 E0", "lstm H256 L2 B32 T35 V28 E0",
		"gru-reset-before H2048 L1 B64 T64 V10000 E2048", "rnn H1024 L2 B64 T64 V10000 E1024"} {
		if !seen[want] {
			t.Errorf("%s is not there", want)
		}
	}
}

func lists() Lists {
	return Lists{Cells: []compute.Cell{compute.LSTM, compute.GRU}, Hidden: []int{8, 16},
		Layers: []int{1}, Batch: []int{2}, BPTT: []int{3}, Vocab: []int{5}, Embed: []int{0, 4},
		Recompute: []int{0}}
}

func TestShapes(t *testing.T) {
	shapes, err := lists().Shapes()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range shapes {
		got = append(got, s.String())
	}
	const want = "lstm H8 L1 B2 T3 V5 E0, lstm H8 L1 B2 T3 V5 E4, lstm H16 L1 B2 T3 V5 E0, " +
		"lstm H16 L1 B2 T3 V5 E4, gru H8 L1 B2 T3 V5 E0, gru H8 L1 B2 T3 V5 E4, " +
		"gru H16 L1 B2 T3 V5 E0, gru H16 L1 B2 T3 V5 E4"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("%s\nwant %s", text, want)
	}
}

func TestShapesRecompute(t *testing.T) {
	l := lists()
	l.Recompute = []int{0, 2}
	shapes, err := l.Shapes()
	if err != nil || len(shapes) != 16 || shapes[0].String() != "lstm H8 L1 B2 T3 V5 E0" ||
		shapes[1].String() != "lstm H8 L1 B2 T3 V5 E0 R2" {
		t.Errorf("%v, %v", shapes, err)
	}
}

// TestAdaptiveShapes: of 15 tokens, half of those drawn are below 3, and a fourth from 7 on.
func TestAdaptiveShapes(t *testing.T) {
	l := lists()
	l.Cells, l.Hidden, l.Vocab, l.Embed, l.Adaptive = l.Cells[:1], []int{16}, []int{15}, []int{4},
		"3,7"
	shapes, err := l.Shapes()
	if err != nil || len(shapes) != 1 || shapes[0].String() != "lstm H16 L1 B2 T3 V15 E4 A3,7" {
		t.Fatalf("%v, %v", shapes, err)
	}
	s := shapes[0]
	// The head has 3 tokens and 2 tails. These have 4 and 8 tokens, and widths of 4 and 1.
	want := 5*16 + (16*4+4*4)/4.0 + (16*1+1*8)/4.0
	if got := s.outputs() * 16; got != want {
		t.Errorf("the output layer has %v products, want %v", got, want)
	}
	s.Batch, s.BPTT = 1000, 10
	counts := make([]int, s.Vocab)
	for _, id := range newBatches(s).tokens[0] {
		counts[id]++
	}
	below := counts[0] + counts[1] + counts[2]
	if share := float64(below) / 11000; share < 0.48 || share > 0.52 {
		t.Errorf("%v of the tokens are below 3", share)
	}
}

func TestShapesRefuse(t *testing.T) {
	for want, change := range map[string]func(l *Lists){
		"--hidden 0":       func(l *Lists) { l.Hidden = []int{8, 0} },
		"--layers -1":      func(l *Lists) { l.Layers = []int{-1} },
		"--batch 0":        func(l *Lists) { l.Batch = []int{0} },
		"--bptt 100000":    func(l *Lists) { l.BPTT = []int{100000} },
		"--vocab 1:":       func(l *Lists) { l.Vocab = []int{1} },
		"--embed -3":       func(l *Lists) { l.Embed = []int{-3} },
		"--recompute -1":   func(l *Lists) { l.Recompute = []int{-1} },
		"--adaptive-softm": func(l *Lists) { l.Adaptive = "x" },
		"cutoff 5 is not":  func(l *Lists) { l.Adaptive = "5" },
		"1001 shapes":      func(l *Lists) { l.Cells, l.Hidden = l.Cells[:1], make([]int, 1001) },
		"no shape":         func(l *Lists) { l.Cells = nil },
		"no shape to meas": func(l *Lists) { l.Vocab = nil },
	} {
		l := lists()
		change(&l)
		if _, err := l.Shapes(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
