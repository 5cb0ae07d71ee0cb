package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"rondo/bench"
	"rondo/compute"
)

// row is how fast both sides train a shape in a precision: tokens a second of whole steps.
type row struct {
	Name      string  `json:"name"`
	Precision string  `json:"precision"`
	Rondo     float64 `json:"rondo"`
	Device    string  `json:"device"`
	// Floor is the upper bound on tokens/s by the products at the measured peak and by the chain of
	// steps; see measurement.
	Floor float64 `json:"floor"`
	// Counted is the peak of the device memory that Rondo counted. Used is the memory that the
	// driver had given by then: also the context, the kernels and cuBLAS.
	Counted int64 `json:"counted_bytes"`
	Used    int64 `json:"used_bytes"`
	// Torch is PyTorch's best setting, and Peers are all that were measured.
	Torch float64   `json:"torch"`
	Best  string    `json:"torch_setting"`
	Peers []peerRow `json:"peers"`
}

// peerRow is a row of torch_gpu.py.
type peerRow struct {
	Peer    string    `json:"peer"`
	Shape   string    `json:"shape"`
	Dtype   string    `json:"dtype"`
	Mode    string    `json:"mode"`
	Windows []float64 `json:"windows"`
	Failed  string    `json:"failed"`
}

// contest is a shape that both sides train.
type contest struct {
	name  string
	shape bench.Shape
}

// A comparison is shapes and the precisions that they are trained in.
type comparison struct {
	contests   []contest
	precisions []string
}

// deep is the shape of the largest word model.
func deep() contest {
	return contest{"words LSTM 1024x2", bench.Shape{Cell: compute.LSTM, Hidden: 1024, Layers: 2,
		Batch: 64, BPTT: 64, Vocab: 10000, Embed: 1024}}
}

// facts are the two shapes that tell the most.
func facts() comparison {
	return comparison{[]contest{{"textbook LSTM", bench.Textbook()[0]}, deep()},
		[]string{"fp32", "bf16"}}
}

// contests are the textbook's shapes, two word models, and one of those for which cuDNN has a
// kernel that keeps the weights on the chip: one layer of half precision, widths multiples of 128.
func contests() comparison {
	words := deep().shape
	words.Hidden, words.Embed, words.Layers = 512, 512, 1
	wide := deep().shape
	wide.Layers, wide.Vocab = 1, 256
	return comparison{[]contest{{"textbook LSTM", bench.Textbook()[0]},
		{"textbook GRU", bench.Textbook()[1]}, {"words LSTM 512", words}, deep(),
		{"cuDNN persistent", wide}}, []string{"fp32", "tf32", "bf16", "fp16"}}
}

// small makes shapes that the emulated driver can train.
func (c comparison) small() comparison {
	for i := range c.contests {
		s := &c.contests[i].shape
		s.Hidden, s.Batch, s.BPTT, s.Vocab = 16, 2+i, 4, 11
		s.Embed = min(s.Embed, 8)
	}
	return c
}

// dtypes are the peer's settings that multiply as a precision does; those with weights of half
// precision train less exactly than Rondo, and count all the same.
func dtypes(precision string) []string {
	return map[string][]string{"fp32": {"float32"}, "tf32": {"tf32"},
		"bf16": {"bfloat16", "bfloat16-weights"}, "fp16": {"float16", "float16-weights"}}[precision]
}

// Windows of a measurement.
const (
	windowSeconds = "0.3"
	windowCount   = "3"
)

// key is a shape as both sides read and print it.
func key(s bench.Shape) string {
	return fmt.Sprintf("%v:%d:%d:%d:%d:%d:%d", s.Cell, s.Hidden, s.Layers, s.Batch, s.BPTT,
		s.Vocab, s.Embed)
}

// flags are those that both sides have under the same names.
func (c comparison) flags() []string {
	var shapes []string
	for _, one := range c.contests {
		shapes = append(shapes, key(one.shape))
	}
	return []string{"--shapes", strings.Join(shapes, ","), "--seconds", windowSeconds,
		"--windows", windowCount}
}

// measuring is the part that measures Rondo, in one process.
func measuring(of func() comparison) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		c, width := of(), fmt.Sprint(peakWidth)
		if s.Emulated {
			c, width = c.small(), "64"
		}
		command := append([]string{s.program("gpu"), "measure", "--peak", width, "--precision",
			strings.Join(c.precisions, ",")}, c.flags()...)
		all, err := objects[measurement](ctx, s, "speed-rondo", command...)
		for _, m := range all {
			r := s.row(c.name(m.Shape), m.Precision)
			r.Rondo, r.Floor, r.Device = m.TokensPerSecond, m.Floor, m.Device
			r.Counted, r.Used = m.PeakBytes, m.UsedBytes
		}
		return fmt.Sprintf("%d rows", len(all)), err
	}
}

// peering is the part that measures PyTorch, in one process. The modes follow one another for all
// shapes: torch.compile comes last, because it takes the longest and may not come to its end.
func peering(of func() comparison, modes string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		if s.python == "" {
			return "", fmt.Errorf("%w: no python3 here has a torch that sees the GPU", errSkipped)
		}
		c, device := of(), "cuda"
		if s.Emulated {
			c, device, modes = c.small(), "cpu", "eager"
		}
		var wanted []string
		for _, p := range c.precisions {
			wanted = append(wanted, dtypes(p)...)
		}
		command := append([]string{s.python, s.program("torch_gpu.py"), "--mode", modes, "--dtype",
			strings.Join(wanted, ","), "--device", device}, c.flags()...)
		all, err := objects[peerRow](ctx, s, "speed-torch", command...)
		for _, m := range all {
			for _, p := range c.precisions {
				if slices.Contains(dtypes(p), m.Dtype) {
					s.row(c.name(m.Shape), p).add(m)
				}
			}
		}
		said := fmt.Sprintf("%d rows", len(all))
		if strings.Contains(modes, "compile") && context.Cause(ctx) != nil && len(all) > 0 {
			return said + ", not all in time", nil
		}
		return said, err
	}
}

// name is the contest's of a shape.
func (c comparison) name(shape string) string {
	for _, one := range c.contests {
		if key(one.shape) == shape {
			return one.name
		}
	}
	return shape
}

// add notes a setting of the peer.
func (r *row) add(m peerRow) {
	r.Peers = append(r.Peers, m)
	if m.Failed != "" || len(m.Windows) == 0 {
		return
	}
	if rate := bench.Median(m.Windows); rate > r.Torch {
		r.Torch, r.Best = rate, m.Dtype+" "+m.Mode
	}
}

// row finds a row, or makes it.
func (s *session) row(name, precision string) *row {
	for i := range s.results.Speed {
		if r := &s.results.Speed[i]; r.Name == name && r.Precision == precision {
			return r
		}
	}
	s.results.Speed = append(s.results.Speed, row{Name: name, Precision: precision})
	return &s.results.Speed[len(s.results.Speed)-1]
}

// printRows prints the table, in Markdown.
func printRows(out io.Writer, rows []row) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(out, "\n| shape | precision | Rondo, tokens/s | PyTorch, best | setting | ratio "+
		"| floor | of it | MiB counted | MiB used |\n"+
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range rows {
		fmt.Fprintf(out, "| %s | %s | %.0f | %.0f | %s | %s | %.0f | %s | %d | %d |\n", r.Name,
			r.Precision, r.Rondo, r.Torch, r.Best, quotient(r.Rondo, r.Torch, "%.2fx", 1), r.Floor,
			quotient(r.Rondo, r.Floor, "%.0f%%", 100), r.Counted>>20, r.Used>>20)
	}
}

// quotient prints a by b, or nothing where one of them was not measured.
func quotient(a, b float64, format string, times float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return fmt.Sprintf(format, times*a/b)
}
