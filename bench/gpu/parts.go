package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

type config struct {
	Folder string // of the programs
	Out    string // folder of the results
	Python string
	Text   string // of the textbook's models; empty: they are left out
	Only   string // names of parts, by commas; empty: all
	Limit  time.Duration
}

// A part is done alone, within its limit.
type part struct {
	name  string
	limit time.Duration
	do    func(ctx context.Context, s *session) (said string, err error)
}

// parts are in the order of how much would be lost without them.
func parts() []part {
	return []part{
		{"devices", 30 * time.Second, devices},
		{"tests", 3 * time.Minute, tests},
		{"train", 3 * time.Minute, trainings},
		{"speed", 5 * time.Minute, speed},
		{"sanitizer", 2 * time.Minute, sanitizer},
		// Takes more than the others leave of the default: it is meant to be run alone.
		{"text", 30 * time.Minute, textbook},
	}
}

func names() []string {
	var all []string
	for _, p := range parts() {
		all = append(all, p.name)
	}
	return all
}

// errSkipped wraps the reason why a part has nothing to do here.
var errSkipped = errors.New("skipped")

// outcome is what came of a part.
type outcome struct {
	Part    string  `json:"part"`
	Verdict string  `json:"verdict"` // ok, skipped or FAILED
	Seconds float64 `json:"seconds"`
	Said    string  `json:"said,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// results are what the JSON file holds.
type results struct {
	Started time.Time `json:"started"`
	Parts   []outcome `json:"parts"`
	Curves  []curve   `json:"curves,omitempty"`
	Speed   []row     `json:"speed,omitempty"`
}

// session is a run of the parts.
type session struct {
	config
	out     io.Writer
	results results
}

// run does the parts and prints a table at last. It fails if a part does. Without a device it stops
// there: what would follow is a failure of each part, and hides the reason.
func run(ctx context.Context, c config, out io.Writer) error {
	s := &session{config: c, out: out, results: results{Started: time.Now()}}
	if err := s.validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o777); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	for _, p := range parts() {
		if c.Only != "" && !slices.Contains(strings.Split(c.Only, ","), p.name) {
			continue
		}
		o := s.do(ctx, p)
		if err := s.save(); err != nil {
			return err
		}
		if o.Part == "devices" && o.Verdict == "FAILED" {
			return fmt.Errorf("no GPU, so that nothing else was run: %s: %w", firstLine(o.Error),
				s.conclude())
		}
	}
	return s.conclude()
}

func (s *session) validate() error {
	if s.Limit <= 0 || s.Limit > 24*time.Hour {
		return fmt.Errorf("-minutes %v: give more than 0, and a day at most", s.Limit.Minutes())
	}
	for name := range strings.SplitSeq(s.Only, ",") {
		if s.Only != "" && !slices.Contains(names(), name) {
			return fmt.Errorf("-only: %q is not one of %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// do does a part, and notes what came of it.
func (s *session) do(ctx context.Context, p part) outcome {
	fmt.Fprintf(s.out, "=== %s\n", p.name)
	o := outcome{Part: p.name, Verdict: "ok"}
	began := time.Now()
	err := ctx.Err()
	if err != nil {
		err = fmt.Errorf("%w: no time was left", errSkipped)
	} else {
		limited, cancel := context.WithTimeoutCause(ctx, p.limit,
			fmt.Errorf("it took longer than %v", p.limit))
		o.Said, err = p.do(limited, s)
		cancel()
	}
	o.Seconds = time.Since(began).Seconds()
	switch {
	case errors.Is(err, errSkipped):
		o.Verdict, o.Error = "skipped", err.Error()
	case err != nil:
		o.Verdict, o.Error = "FAILED", err.Error()
	}
	s.results.Parts = append(s.results.Parts, o)
	fmt.Fprintf(s.out, "=== %s: %s, %.0f s %s\n", o.Part, o.Verdict, o.Seconds, o.Error)
	return o
}

// save writes what there is so far.
func (s *session) save() error {
	text, err := json.MarshalIndent(s.results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.Out, "results.json"), append(text, '\n'), 0o666)
}

// conclude prints what came of all, the speeds last.
func (s *session) conclude() error {
	fmt.Fprintln(s.out)
	var failed []string
	for _, o := range s.results.Parts {
		fmt.Fprintf(s.out, "%-10s %-8s %5.0f s  %s%s\n", o.Part, o.Verdict, o.Seconds, o.Said,
			firstLine(o.Error))
		if o.Verdict == "FAILED" {
			failed = append(failed, o.Part)
		}
	}
	for _, c := range s.results.Curves {
		fmt.Fprintln(s.out, c)
	}
	printRows(s.out, s.results.Speed)
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; see the logs in %s", strings.Join(failed, ", "), s.Out)
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
