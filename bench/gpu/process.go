package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rondo/internal/procgroup"
)

// stopTimeout is how long a process may take to end when asked.
const stopTimeout = 5 * time.Second

// program is the path of one that lies in the folder.
func (s *session) program(name string) string { return filepath.Join(s.Folder, name) }

// process is a command that ends with ctx, together with all processes that it has started. Its
// standard error goes to a log in the folder of the results.
func (s *session) process(ctx context.Context, log io.Writer, command ...string) *exec.Cmd {
	p := exec.CommandContext(ctx, command[0], command[1:]...)
	p.Dir, p.Stderr = s.Work, log
	procgroup.Set(p)
	p.Cancel = func() error { return procgroup.Signal(p.Process.Pid, syscall.SIGTERM) }
	p.WaitDelay = stopTimeout
	return p
}

// output runs a command and returns its output. At its end no process that it started is left.
func (s *session) output(ctx context.Context, name string, command ...string) ([]byte, error) {
	var output bytes.Buffer
	err := s.into(ctx, &output, name, command...)
	return output.Bytes(), err
}

// into is output to a writer.
func (s *session) into(ctx context.Context, to io.Writer, name string, command ...string) error {
	log, err := s.log(name)
	if err != nil {
		return err
	}
	defer log.Close()
	p := s.process(ctx, log, command...)
	p.Stdout = io.MultiWriter(to, log)
	err = p.Run()
	if p.Process != nil {
		_ = procgroup.Signal(p.Process.Pid, syscall.SIGKILL) // there may be nobody left, as is best
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		err = fmt.Errorf("%s: %w (%s)", strings.Join(command, " "), err, filepath.Base(log.Name()))
	}
	return err
}

// log opens the log of a command. Commands of the same name append to one log.
func (s *session) log(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(s.Work, name+".log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
}

// A timed is a buffer that notes when each line came to its end.
type timed struct {
	bytes.Buffer
	lines []time.Time
}

func (t *timed) Write(text []byte) (int, error) {
	for range bytes.Count(text, []byte("\n")) {
		t.lines = append(t.lines, time.Now())
	}
	return t.Buffer.Write(text)
}

// objects runs a command that prints JSON objects and returns them. If it fails, those that it
// printed before come with the error.
func objects[T any](ctx context.Context, s *session, name string, command ...string) ([]T, error) {
	var text bytes.Buffer
	return decode[T](&text, s.into(ctx, &text, name, command...))
}

// decode returns the objects of a text, with the error that the command ended with.
func decode[T any](text io.Reader, err error) ([]T, error) {
	var all []T
	decoder := json.NewDecoder(text)
	for {
		var one T
		broken := decoder.Decode(&one)
		if errors.Is(broken, io.EOF) {
			return all, err
		}
		if broken != nil {
			return all, errors.Join(err, fmt.Errorf("no JSON object: %w", broken))
		}
		all = append(all, one)
	}
}
