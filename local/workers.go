package local

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"rondo/internal/procgroup"
)

// killDelay is how long a worker has to end by itself when the job has ended, and again when it is
// asked to, before it is killed.
const killDelay = 5 * time.Second

// maxLogLine bounds a line of a worker's log that is passed on.
const maxLogLine = 64 << 10

// maxProcesses bounds how many worker processes one run starts, those that replace others included.
const maxProcesses = 1 << 10

// Workers are worker processes of this machine.
type Workers struct {
	argv    func(worker int) []string
	log     func(worker int, line string)
	exits   chan Exit
	waiting sync.WaitGroup

	mu       sync.Mutex
	commands map[int]*exec.Cmd // those that run, by process id
	started  int
	ending   bool // no more are started
}

// Exit is the end of a worker process; Err is nil when it exited with code 0.
type Exit struct {
	Worker int // from 0, in the order of the first start
	PID    int
	Err    error
	Lived  time.Duration
}

// NewWorkers returns workers of these command lines, none of which runs. Each line that they write
// to standard error goes to log with the worker's number. They run in process groups of their
// own, so that Ctrl-C in a terminal reaches only the parent, which then stops them in order.
func NewWorkers(argv func(worker int) []string, log func(worker int, line string)) *Workers {
	return &Workers{argv: argv, log: log, exits: make(chan Exit, maxProcesses),
		commands: map[int]*exec.Cmd{}}
}

// Start starts a process under a worker's number, unless the workers are being ended.
func (w *Workers) Start(worker int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ending {
		return nil
	}
	if w.started == maxProcesses {
		return fmt.Errorf("worker %d: %d processes have been started already", worker, w.started)
	}
	argv := w.argv(worker)
	command := exec.Command(argv[0], argv[1:]...)
	procgroup.Set(command)
	// The worker reads its standard input, and ends when this process, the only one that holds
	// the other end, is gone.
	if _, err := command.StdinPipe(); err != nil {
		return fmt.Errorf("worker %d: %w", worker, err)
	}
	stderr, err := command.StderrPipe()
	if err != nil {
		return fmt.Errorf("worker %d: %w", worker, err)
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("worker %d: %w", worker, err)
	}
	began := time.Now()
	w.started++
	w.commands[command.Process.Pid] = command
	w.waiting.Go(func() {
		copyLines(stderr, func(line string) { w.log(worker, line) })
		exit := Exit{Worker: worker, PID: command.Process.Pid, Err: command.Wait(),
			Lived: time.Since(began)}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.commands, exit.PID)
		w.exits <- exit // has room for all there are
	})
	return nil
}

// Running is how many processes run, with those whose end waits in Exits: what becomes of them is
// not settled yet.
func (w *Workers) Running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.commands) + len(w.exits)
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending = true
	for pid := range w.commands {
		_ = procgroup.Signal(pid, s) // it may have ended already
	}
}

// Wait returns when all workers have ended. When ctx ends first they are asked to end, and killed
// if they do not within a while; it returns the processes that had to be.
func (w *Workers) Wait(ctx context.Context) (killed []int) {
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
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
		return nil
	case <-timer.C:
	}
	w.mu.Lock()
	killed = slices.Sorted(maps.Keys(w.commands))
	w.mu.Unlock()
	w.Kill()
	<-ended
	return killed
}
