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

// killDelay is the time for a worker to end by itself after the job's end, and again after SIGTERM,
// before it is killed.
const killDelay = 5 * time.Second

// maxLogLine bounds a forwarded line of a worker's log.
const maxLogLine = 64 << 10

// maxProcesses bounds the worker processes that one run starts, including replacements.
const maxProcesses = 1 << 10

// Workers starts and ends worker processes on this machine.
type Workers struct {
	argv    func(worker int) []string
	log     func(worker int, line string)
	exits   chan Exit
	waiting sync.WaitGroup

	mu       sync.Mutex
	commands map[int]*exec.Cmd // running processes, by process id
	started  int
	ending   bool // no more are started
}

// Exit is the end of a worker process. Err is nil if its exit code was 0.
type Exit struct {
	Worker int // number of the worker, from 0
	PID    int
	Err    error
	Lived  time.Duration
}

// NewWorkers returns Workers without processes. argv gives a worker's command line; log receives
// each line of its standard error. Each process has its own process group, so Ctrl-C in a terminal
// reaches only the parent, which then stops them in order.
func NewWorkers(argv func(worker int) []string, log func(worker int, line string)) *Workers {
	return &Workers{argv: argv, log: log, exits: make(chan Exit, maxProcesses),
		commands: map[int]*exec.Cmd{}}
}

// Start starts a process for a worker's number. It does nothing once the workers are being ended.
func (w *Workers) Start(worker int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ending {
		return nil
	}
	if w.started == maxProcesses {
		return fmt.Errorf("worker %d: the limit of %d processes is reached", worker, w.started)
	}
	argv := w.argv(worker)
	command := exec.Command(argv[0], argv[1:]...)
	procgroup.Set(command)
	// The worker reads its standard input, whose other end only this process holds. So it ends when
	// this process is gone.
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
		w.exits <- exit // never blocks: it has room for maxProcesses
	})
	return nil
}

// Running returns the number of processes, including those whose Exit was not received yet.
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
	// Too long a line ends the scan. The rest must still be read, or the worker would block.
	_, _ = io.Copy(io.Discard, r)
}

// Exits returns the channel with each process's end.
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
		_ = procgroup.Signal(pid, s) // fails if it has ended already
	}
}

// Wait returns when all processes have ended. If ctx ends first, it asks them to end and kills
// those that do not. It returns the ids of the killed processes.
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
