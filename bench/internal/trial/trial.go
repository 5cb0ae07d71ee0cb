// Package trial runs `rondo train --json` for the measurements under bench, and reads its events.
// Callers give the job's flags. It imports internal/procgroup.
package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"rondo/internal/procgroup"
)

// stopTimeout is how long a cancelled job may take to save and end before it is killed.
const stopTimeout = time.Minute

// A Result is the figures that a job printed.
type Result struct {
	Steps           int64
	Epoch           int64
	Perplexity      float64 // exp of the mean training loss over the steps of the last epoch
	TokensPerSecond float64 // median over the run
	EvalLoss        float64 // of the last evaluation; 0: there was none
	Sample          string  // the last one
	Device          string  // of rank 0
	Timings         []Timing
}

// A Timing is where the seconds of a step went.
type Timing struct {
	Compute float64 `json:"compute_seconds"`
	Exposed float64 `json:"exposed_seconds"` // ring time not overlapped
	Waiting float64 `json:"waiting_seconds"` // for others
}

// Run runs the program with the arguments, whose last is the first flag of `rondo train` or later:
// ["bin/rondo", "train", "--json", ...]. The job's log goes to log.
func Run(ctx context.Context, log io.Writer, command ...string) (Result, error) {
	job := exec.CommandContext(ctx, command[0], command[1:]...)
	// Not in our process group: Ctrl-C would reach it twice, and the second ends it at once.
	procgroup.Set(job)
	job.Cancel = func() error { return job.Process.Signal(syscall.SIGINT) }
	job.WaitDelay = stopTimeout
	job.Stderr = log
	output, err := job.StdoutPipe()
	if err != nil {
		return Result{}, err
	}
	if err := job.Start(); err != nil {
		return Result{}, err
	}
	result, readErr := Read(output)
	if readErr != nil {
		// A job that nobody reads would wait for ever.
		_, _ = io.Copy(io.Discard, output)
	}
	if err := job.Wait(); err != nil {
		return Result{}, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return result, readErr
}

// event has the members of all events that count here. A loss that is not finite is null.
type event struct {
	Event           string   `json:"event"`
	Rank            int64    `json:"rank"`
	Device          string   `json:"device"`
	Step            int64    `json:"step"`
	Epoch           int64    `json:"epoch"`
	Loss            *float64 `json:"loss"`
	TokensPerSecond float64  `json:"tokens_per_second"`
	Text            string   `json:"text"`
	Timing
}

// Read reads a job's events to the end. It fails if there is no "done" among them, or no step.
func Read(r io.Reader) (Result, error) {
	var result Result
	var losses []float64 // of the newest epoch
	done := false
	decoder := json.NewDecoder(r)
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Result{}, fmt.Errorf("after step %d: not a job's events: %w", result.Steps, err)
		}
		switch e.Event {
		case "worker":
			if e.Rank == 0 {
				result.Device = e.Device
			}
		case "step":
			if e.Epoch != result.Epoch {
				losses = losses[:0]
			}
			result.Steps, result.Epoch = e.Step, e.Epoch
			losses = append(losses, number(e.Loss))
			result.Timings = append(result.Timings, e.Timing)
		case "eval":
			result.EvalLoss = number(e.Loss)
		case "sample":
			result.Sample = e.Text
		case "done":
			done = true
			result.TokensPerSecond = e.TokensPerSecond
		}
	}
	if !done || len(losses) == 0 {
		return Result{}, fmt.Errorf("the job's events end after step %d without \"done\"",
			result.Steps)
	}
	sum := 0.0
	for _, loss := range losses {
		sum += loss
	}
	result.Perplexity = math.Exp(sum / float64(len(losses)))
	return result, nil
}

// number is NaN where JSON had null.
func number(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
