//go:build !wasm

package telemetry

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"rondo/internal/printable"
)

// BarView shows a progress bar on a terminal and writes the lines of other events above it.
type BarView struct {
	progress *mpb.Progress
	bar      *mpb.Bar
	now      func() time.Time
	shown    atomic.Pointer[barState]
}

// barState is what the bar shows: the newest step, and the first one for the mean rate.
type barState struct {
	step      Step
	firstStep int64
	firstTime time.Time
}

// NewBarView draws on the terminal w. now is the clock for the time left.
func NewBarView(w io.Writer, now func() time.Time) *BarView {
	return &BarView{
		progress: mpb.New(mpb.WithOutput(w), mpb.WithAutoRefresh(),
			mpb.WithRefreshRate(150*time.Millisecond)),
		now: now,
	}
}

// Show moves the bar, or writes the event's line above it.
func (v *BarView) Show(e Event) error {
	step, ok := e.(Step)
	if !ok && e.line() == "" {
		return nil
	}
	if !ok {
		// The container expects each write to end with its line.
		_, err := fmt.Fprintln(v.progress, printable.Text(strings.TrimRight(e.line(), "\n")))
		return err
	}
	state := barState{step: step, firstStep: step.Step, firstTime: v.now()}
	if old := v.shown.Load(); old != nil {
		state.firstStep, state.firstTime = old.firstStep, old.firstTime
	}
	v.shown.Store(&state)
	if v.bar == nil {
		v.bar = v.progress.AddBar(step.TotalSteps, mpb.BarRemoveOnComplete(),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
				return v.shown.Load().text(v.now())
			})))
	}
	v.bar.SetCurrent(step.Step)
	if step.Skipped {
		_, err := fmt.Fprintln(v.progress, step.line())
		return err
	}
	return nil
}

// Close takes the bar away and restores the terminal.
func (v *BarView) Close() error {
	if v.bar != nil {
		v.bar.Abort(true)
	}
	v.progress.Wait()
	return nil
}

func (s *barState) text(now time.Time) string {
	return fmt.Sprintf(" step %d/%d epoch %d loss %.3f%s %s tok/s eta %s ring %d", s.step.Step,
		s.step.TotalSteps, s.step.Epoch, s.step.Loss, perplexity(" ppl %.2f", s.step.Perplexity),
		thousands(s.step.TokensPerSecond), s.eta(now), s.step.WorldSize)
}

// eta estimates the time left from the mean rate since the first step shown.
func (s *barState) eta(now time.Time) string {
	done := s.step.Step - s.firstStep
	if done <= 0 {
		return "-"
	}
	perStep := now.Sub(s.firstTime) / time.Duration(done)
	left := perStep * time.Duration(s.step.TotalSteps-s.step.Step)
	return left.Round(time.Second).String()
}
