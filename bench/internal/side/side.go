// Package side runs one side of a comparison: a program that prints its measurements as JSON. It
// does not know their meaning. It imports internal/procgroup.
package side

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"rondo/internal/procgroup"
)

// timeout bounds one process of a side, and stopTimeout how long it may take to end when asked.
const (
	timeout     = 15 * time.Minute
	stopTimeout = 10 * time.Second
)

// Run runs a command and returns the JSON objects that it prints. If it fails, those that it
// printed before come with the error.
func Run[T any](ctx context.Context, command []string, log io.Writer) ([]T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("it took longer than %v", timeout))
	defer cancel()
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	// Not in our process group: Ctrl-C reaches it once, from here.
	procgroup.Set(process)
	process.Cancel = func() error { return procgroup.Signal(process.Process.Pid, syscall.SIGTERM) }
	process.WaitDelay = stopTimeout
	var output bytes.Buffer
	process.Stdout, process.Stderr = &output, log
	err := process.Run()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var rows []T
	decoder := json.NewDecoder(&output)
	for {
		var row T
		switch broken := decoder.Decode(&row); {
		case broken == nil:
			rows = append(rows, row)
		case errors.Is(broken, io.EOF):
			return rows, err
		default:
			return rows, errors.Join(err, fmt.Errorf("row %d is not JSON: %w", len(rows)+1, broken))
		}
	}
}
