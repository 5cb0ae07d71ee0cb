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
	Command  string // facts, tests or tools
	Folder   string // of the programs
	Work     string // folder of the logs
	Out      string // folder of the archive
	Python   string // empty: one with torch is looked for
	Only     string // names of parts, by commas; empty: all
	Emulated bool   // small shapes
	Limit    time.Duration
}

// A part is done alone, within its limit.
type part struct {
	name  string
	limit time.Duration
	do    func(ctx context.Context, s *session) (said string, err error)
}

// first is the part that each command begins with: without a GPU the others mean nothing.
const first = "versions"

// parts returns a command's parts: those first whose loss would cost the most. Their limits add up
// to commandLimit at most, so that each has its time.
func parts(command string) []part {
	versions := part{first, 60 * time.Second, versions}
	switch command {
	case "facts":
		return []part{versions,
			{"kernels", 60 * time.Second, kernelUse},
			{"core", 80 * time.Second, core},
			{"rondo", 50 * time.Second, measuring(facts)},
			{"torch", 90 * time.Second, peering(facts, "eager,graph")},
			{"steps", 50 * time.Second, recurrences},
			{"conformance", 70 * time.Second, testsOf("cuda", "^TestConformance$/^(fp32|bf16)$")},
			{"train", 60 * time.Second, pair},
		}
	case "tests":
		return []part{versions,
			{"driver", 20 * time.Second, testsOf("driver", ".")},
			{"all", 140 * time.Second, testsOf("cuda", ".")},
			{"older", 80 * time.Second, older},
			{"curves", 110 * time.Second, curves},
			{"text", 70 * time.Second, textbook},
			{"kill", 40 * time.Second, kill},
		}
	case "tools":
		return []part{versions,
			{"ncu", 100 * time.Second, profile},
			{"memcheck", 80 * time.Second, sanitizing("memcheck")},
			{"racecheck", 80 * time.Second, sanitizing("racecheck")},
			{"rondo", 70 * time.Second, measuring(contests)},
			{"torch", 140 * time.Second, peering(contests, "eager,graph,compile")},
		}
	}
	return nil
}

func names(command string) []string {
	var all []string
	for _, p := range parts(command) {
		all = append(all, p.name)
	}
	return all
}

// errSkipped wraps the reason why a part has nothing to do here.
var errSkipped = errors.New("skipped")

// outcome is the result of a part.
type outcome struct {
	Part    string  `json:"part"`
	Verdict string  `json:"verdict"` // ok, skipped or FAILED
	Seconds float64 `json:"seconds"`
	Said    string  `json:"said,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// results is the content of results.json.
type results struct {
	Command string        `json:"command"`
	Started time.Time     `json:"started"`
	Torch   torchVersions `json:"torch,omitzero"`
	Parts   []outcome     `json:"parts"`
	Curves  []curve       `json:"curves,omitempty"`
	Speed   []row         `json:"speed,omitempty"`
}

// session is a run of a command's parts.
type session struct {
	config
	out     io.Writer
	python  string // an interpreter that has torch; empty: there is none
	results results
}

// run does a command's parts and prints a table. It fails if a part does.
func run(ctx context.Context, c config, out io.Writer) error {
	s := &session{config: c, out: out, results: results{Command: c.Command, Started: time.Now()}}
	if err := s.validate(); err != nil {
		return err
	}
	for _, folder := range []string{c.Work, c.Out} {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	for _, p := range parts(c.Command) {
		if c.Only != "" && !slices.Contains(strings.Split(c.Only, ","), p.name) {
			continue
		}
		o := s.do(ctx, p)
		if err := s.save(); err != nil {
			return err
		}
		if o.Part == first && o.Verdict == "FAILED" {
			return fmt.Errorf("no GPU, so that nothing else was run: %s: %w", firstLine(o.Error),
				s.conclude())
		}
	}
	return s.conclude()
}

func (s *session) validate() error {
	if parts(s.Command) == nil {
		return fmt.Errorf("%q is not a command: give facts, tests or tools", s.Command)
	}
	for name := range strings.SplitSeq(s.Only, ",") {
		if s.Only != "" && !slices.Contains(names(s.Command), name) {
			return fmt.Errorf("-only: %q is not one of %s", name,
				strings.Join(names(s.Command), ", "))
		}
	}
	return nil
}

// do runs a part and records its outcome.
func (s *session) do(ctx context.Context, p part) outcome {
	fmt.Fprintf(s.out, "=== %s\n", p.name)
	o := outcome{Part: p.name, Verdict: "ok"}
	if s.Emulated {
		p.limit *= emulatedSlowness
	}
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

// save writes the results so far.
func (s *session) save() error {
	text, err := json.MarshalIndent(s.results, "", "  ")
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(s.Work, "results.json"), append(text, '\n'), 0o666)
	if err != nil {
		return err
	}
	return archive(s.Work, filepath.Join(s.Out, "rondo-gpu-"+s.Command+".tar.gz"))
}

// conclude prints all outcomes, the speeds last.
func (s *session) conclude() error {
	fmt.Fprintln(s.out)
	var failed []string
	for _, o := range s.results.Parts {
		fmt.Fprintf(s.out, "%-11s %-8s %5.0f s  %s\n", o.Part, o.Verdict, o.Seconds,
			strings.Trim(o.Said+"; "+firstLine(o.Error), "; "))
		if o.Verdict == "FAILED" {
			failed = append(failed, o.Part)
		}
	}
	for _, c := range s.results.Curves {
		fmt.Fprintln(s.out, c)
	}
	printRows(s.out, s.results.Speed)
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; see the logs in rondo-gpu-%s.tar.gz",
			strings.Join(failed, ", "), s.Command)
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
