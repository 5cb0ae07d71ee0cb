package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// killDelay is how long a worker has to end by itself before it is killed.
const killDelay = 10 * time.Second

// maxLogLine bounds a line of a worker's log that is passed on.
const maxLogLine = 64 << 10

// Workers are worker processes of this machine.
type Workers struct {
	commands []*exec.Cmd
	exits    chan Exit
	waiting  sync.WaitGroup
}

// Exit is the end of a worker process; Err is nil when it exited with code 0.
type Exit struct {
	Worker int // from 0, in the order of the start
	PID    int
	Err    error
}

// StartWorkers starts n processes of the command line. Each line that they write to standard
// error goes to log with the worker's number. They run in process groups of their own, so that
// Ctrl-C in a terminal reaches only the parent, which then stops them in order.
func StartWorkers(n int, argv []string, log func(worker int, line string)) (*Workers, error) {
	w := &Workers{exits: make(chan Exit, n)}
	for i := range n {
		if err := w.start(i, argv, log); err != nil {
			w.Kill()
			w.waiting.Wait()
			return nil, fmt.Errorf("worker %d: %w", i, err)
		}
	}
	return w, nil
}

func (w *Workers) start(i int, argv []string, log func(int, string)) error {
	command := exec.Command(argv[0], argv[1:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// The worker reads its standard input, and ends when this process, the only one that holds
	// the other end, is gone.
	if _, err := command.StdinPipe(); err != nil {
		return err
	}
	stderr, err := command.StderrPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	w.commands = append(w.commands, command)
	w.waiting.Add(1)
	go func() {
		defer w.waiting.Done()
		copyLines(stderr, func(line string) { log(i, line) })
		w.exits <- Exit{Worker: i, PID: command.Process.Pid, Err: command.Wait()}
	}()
	return nil
}

func copyLines(r io.Reader, line func(string)) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLogLine)
	for scanner.Scan() {
		line(scanner.Text())
	}
	// A line over the limit ends the scan; what follows must still be read, or the worker blocks.
	_, _ = io.Copy(io.Discard, r)
}

// Exits delivers each worker's end.
func (w *Workers) Exits() <-chan Exit { return w.exits }

// Terminate asks all workers to end.
func (w *Workers) Terminate() { w.signal(syscall.SIGTERM) }

// Kill ends all workers at once.
func (w *Workers) Kill() { w.signal(syscall.SIGKILL) }

func (w *Workers) signal(s syscall.Signal) {
	for _, c := range w.commands {
		_ = syscall.Kill(-c.Process.Pid, s) // the group; it may have ended already
	}
}

// Wait returns when all workers have ended. When ctx ends first they are asked to end, and killed
// if they do not within a while.
func (w *Workers) Wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		w.waiting.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	w.Terminate()
	timer := time.NewTimer(killDelay)
	defer timer.Stop()
	select {
	case <-ended:
		return ctx.Err()
	case <-timer.C:
	}
	w.Kill()
	<-ended
	return errors.Join(ctx.Err(), fmt.Errorf("workers did not end within %v and were killed",
		killDelay))
}
