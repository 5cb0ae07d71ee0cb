// Package killtrace is the file of bench/recovery's -trace, which bench/pictures draws: one JSON
// object a line and job, with its steps and the kills of its workers.
package killtrace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Step is a step as a job reported it.
type Step struct {
	At      float64 `json:"at"`      // seconds since the job's first step
	Step    int64   `json:"step"`    // lower than before where the job went back to a snapshot
	Workers int64   `json:"workers"` // of the ring
}

// Kill is a kill of a worker.
type Kill struct {
	At    float64 `json:"at"`    // seconds since the job's first step
	Fresh float64 `json:"fresh"` // seconds until the first step beyond all completed ones
	Again int64   `json:"again"` // steps that were done again
}

// Job is one job of the file.
type Job struct {
	Job   string `json:"job"`
	Kills []Kill `json:"kills"`
	Steps []Step `json:"steps"`
}

// Write writes the jobs to a file.
func Write(path string, all []Job) error {
	var text []byte
	for _, t := range all {
		line, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("-trace: %w", err)
		}
		text = append(append(text, line...), '\n')
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	return nil
}

// Read reads a file that Write has written.
func Read(path string) ([]Job, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("-trace: %w", err)
	}
	defer func() { _ = file.Close() }()
	var jobs []Job
	for decoder := json.NewDecoder(file); ; {
		var j Job
		switch err := decoder.Decode(&j); {
		case errors.Is(err, io.EOF):
			return jobs, nil
		case err != nil:
			return nil, fmt.Errorf("-trace: job %d in %s is not JSON: %w", len(jobs)+1, path, err)
		}
		jobs = append(jobs, j)
	}
}
