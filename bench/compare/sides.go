package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"rondo/bench"
	"rondo/bench/internal/side"
	"rondo/compute"
)

// pinned runs a command on as many of the cores.
func (c config) pinned(threads int, command ...string) []string {
	cores := strings.Split(c.Cores, ",")[:threads]
	return append([]string{"taskset", "--cpu-list", strings.Join(cores, ",")}, command...)
}

// common are the flags that both sides have under the same names.
func (c config) common(s bench.Shape, p plan, threads int) []string {
	return []string{"--cell", s.Cell.String(), "--hidden", strconv.Itoa(s.Hidden),
		"--layers", strconv.Itoa(s.Layers), "--batch", strconv.Itoa(s.Batch),
		"--bptt", strconv.Itoa(s.BPTT), "--vocab", strconv.Itoa(s.Vocab),
		"--embed", strconv.Itoa(s.Embed), "--threads", strconv.Itoa(threads),
		"--seconds", fmt.Sprint(c.Seconds), "--windows", strconv.Itoa(p.windows)}
}

func (c config) rondoCommand(s bench.Shape, p plan, threads int) []string {
	line := c.pinned(threads, c.Rondo, "bench", "train", "--json", "--precision", c.Precisions)
	return append(line, c.common(s, p, threads)...)
}

func (c config) torchCommand(s bench.Shape, p plan, threads int) []string {
	names := strings.NewReplacer("fp32", "float32", "bf16", "bfloat16").Replace(c.Precisions)
	line := c.pinned(threads, c.Python, c.Script, "--dtype", names, "--mode", c.Modes)
	return append(line, c.common(s, p, threads)...)
}

// rondoRow is the part of a row of `rondo bench train` that is used here.
type rondoRow struct {
	Precision string    `json:"precision"`
	Threads   int       `json:"threads"`
	Windows   []float64 `json:"windows"`
	GFLOPS    float64   `json:"gflops"`
	OfPeak    float64   `json:"of_peak"`
	PeakBytes int64     `json:"peak_bytes"`
	Device    string    `json:"device"`
}

// runRondo measures a shape in both precisions. A setting that fails is an error.
func (c config) runRondo(ctx context.Context, s bench.Shape, p plan, threads int, log io.Writer) (
	[]measured, error) {
	command := c.rondoCommand(s, p, threads)
	rows, err := side.Run[rondoRow](ctx, command, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	var all []measured
	for _, r := range rows {
		precision, err := compute.ParsePrecision(r.Precision)
		if err != nil || len(r.Windows) == 0 {
			return nil, fmt.Errorf("%s: a row without rates: %+v", strings.Join(command, " "), r)
		}
		all = append(all, measured{setting: setting{precision: precision, threads: r.Threads},
			windows: r.Windows, note: fmt.Sprintf("%.0f GFLOP/s, %.0f%% of peak, %.0f MB, %s",
				r.GFLOPS, 100*r.OfPeak, float64(r.PeakBytes)/1e6, r.Device)})
	}
	return all, nil
}

// torchRow is a row of torch_lm.py.
type torchRow struct {
	Dtype   string    `json:"dtype"`
	Mode    string    `json:"mode"`
	Threads int       `json:"threads"`
	Windows []float64 `json:"windows"`
	Failed  string    `json:"failed"`
}

// runTorch measures a shape in all of PyTorch's settings. One that fails, or that is missing for
// the process ended before it, comes back with the reason; it is an error only if all do.
func (c config) runTorch(ctx context.Context, s bench.Shape, p plan, threads int, log io.Writer) (
	[]measured, error) {
	command := c.torchCommand(s, p, threads)
	rows, err := side.Run[torchRow](ctx, command, log)
	if ctx.Err() != nil {
		return nil, err
	}
	reason := "it printed nothing about this"
	if err != nil {
		reason = err.Error()
	}
	var all []measured
	worked := false
	dtypes := map[compute.Precision]string{compute.FP32: "float32", compute.BF16: "bfloat16"}
	for _, precision := range c.precisions() {
		for mode := range strings.SplitSeq(c.Modes, ",") {
			m := measured{setting: setting{precision, threads, mode}, failed: reason}
			for _, r := range rows {
				if r.Dtype == dtypes[precision] && r.Mode == mode && r.Threads == threads {
					m.windows, m.failed = r.Windows, r.Failed
				}
			}
			if m.failed == "" && len(m.windows) == 0 {
				m.failed = "it printed no rates"
			}
			worked = worked || m.failed == ""
			all = append(all, m)
		}
	}
	if !worked {
		return nil, fmt.Errorf("%s: no setting works: %s", strings.Join(command, " "),
			all[0].failed)
	}
	return all, nil
}
