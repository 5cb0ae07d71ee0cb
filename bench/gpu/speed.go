package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"rondo/bench"
	"rondo/compute"
)

// row is how fast both sides train a shape in a precision: tokens a second of whole steps.
type row struct {
	Name      string  `json:"name"`
	Precision string  `json:"precision"`
	Rondo     float64 `json:"rondo"`
	Device    string  `json:"device"`
	// Floor is what the products at the measured peak, or the chain of steps, would allow at the
	// most; see measurement.
	Floor float64 `json:"floor"`
	// Torch is PyTorch's best setting, and Peers are all that were measured.
	Torch float64   `json:"torch"`
	Best  string    `json:"torch_setting"`
	Peers []peerRow `json:"peers"`
}

// peerRow is a row of torch_gpu.py.
type peerRow struct {
	Peer    string    `json:"peer"`
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

// contests are the textbook's shapes, two word models, and one of those for which cuDNN has a
// kernel that keeps the weights on the chip: one layer of half precision, widths multiples of 128.
func contests() []contest {
	words := bench.Shape{Cell: compute.LSTM, Hidden: 512, Layers: 1, Batch: 64, BPTT: 64,
		Vocab: 10000, Embed: 512}
	deep, wide := words, words
	deep.Hidden, deep.Embed, deep.Layers = 1024, 1024, 2
	wide.Hidden, wide.Embed, wide.Vocab = 1024, 1024, 256
	return []contest{{name: "textbook LSTM", shape: bench.Textbook()[0]},
		{name: "textbook GRU", shape: bench.Textbook()[1]},
		{name: "words LSTM 512", shape: words}, {name: "words LSTM 1024x2", shape: deep},
		{name: "cuDNN persistent", shape: wide}}
}

const allPrecisions = "fp32,tf32,bf16,fp16"

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

// shapeArguments are the flags that both sides have under the same names.
func shapeArguments(s bench.Shape) []string {
	return []string{"--cell", s.Cell.String(), "--hidden", strconv.Itoa(s.Hidden), "--layers",
		strconv.Itoa(s.Layers), "--batch", strconv.Itoa(s.Batch), "--bptt", strconv.Itoa(s.BPTT),
		"--vocab", strconv.Itoa(s.Vocab), "--embed", strconv.Itoa(s.Embed),
		"--seconds", windowSeconds, "--windows", windowCount}
}

// speed measures both sides by turns. PyTorch is measured eager and as a CUDA graph first, and
// compiled when all else has been, for that takes it long.
func speed(ctx context.Context, s *session) (string, error) {
	var errs []error
	for _, c := range contests() {
		errs = append(errs, s.own(ctx, c), s.peer(ctx, c, "eager,graph"))
	}
	for _, c := range contests() {
		errs = append(errs, s.peer(ctx, c, "compile"))
	}
	//nolint:errcheck // again, for the machine may have been cold
	s.own(ctx, contests()[0])
	return fmt.Sprintf("%d rows", len(s.results.Speed)), errors.Join(errs...)
}

// turnLimit bounds one process of a side.
const turnLimit = 90 * time.Second

// own measures Rondo.
func (s *session) own(ctx context.Context, c contest) error {
	ctx, cancel := context.WithTimeoutCause(ctx, turnLimit, errors.New("it took too long"))
	defer cancel()
	command := append([]string{s.program("gpu"), "measure", "--precision", allPrecisions},
		shapeArguments(c.shape)...)
	all, err := objects[measurement](ctx, s, "speed-rondo", command...)
	for _, m := range all {
		r := s.row(c.name, m.Precision)
		if m.TokensPerSecond > r.Rondo {
			r.Rondo, r.Floor, r.Device = m.TokensPerSecond, m.Floor, m.Device
		}
	}
	return err
}

// peer measures PyTorch. Where there is none there is nothing to compare with, which is no error.
func (s *session) peer(ctx context.Context, c contest, modes string) error {
	if _, err := s.output(ctx, "speed-torch", s.Python, "-c", "import torch"); err != nil {
		fmt.Fprintf(s.out, "%s: no PyTorch to compare with: %v\n", c.name, err)
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, turnLimit, errors.New("it took too long"))
	defer cancel()
	command := append([]string{s.Python, s.program("torch_gpu.py"), "--mode", modes},
		shapeArguments(c.shape)...)
	all, err := objects[peerRow](ctx, s, "speed-torch", command...)
	for _, p := range []string{"fp32", "tf32", "bf16", "fp16"} {
		r := s.row(c.name, p)
		for _, dtype := range dtypes(p) {
			for _, m := range all {
				if m.Dtype == dtype {
					r.add(m)
				}
			}
		}
	}
	if err != nil && strings.Contains(modes, "compile") {
		fmt.Fprintf(s.out, "%s: PyTorch, compiled: %v\n", c.name, err)
		return nil
	}
	return err
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
		"| floor | of it |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range rows {
		fmt.Fprintf(out, "| %s | %s | %.0f | %.0f | %s | %s | %.0f | %s |\n", r.Name, r.Precision,
			r.Rondo, r.Torch, r.Best, quotient(r.Rondo, r.Torch, "%.2fx", 1), r.Floor,
			quotient(r.Rondo, r.Floor, "%.0f%%", 100))
	}
}

// quotient prints a by b, or nothing where one of them was not measured.
func quotient(a, b float64, format string, times float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return fmt.Sprintf(format, times*a/b)
}
