package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bounds of what is read from a process.
const (
	maxLine   = 1 << 20
	maxEvents = 1 << 12 // that nobody has taken yet; then the process waits
	logTail   = 8 << 10 // bytes of its standard error that an error shows
)

// endTimeout is how long a process that was killed may take to be gone.
const endTimeout = 30 * time.Second

// A stage is where processes run: a folder of their own, and one stream of their events.
type stage struct {
	dir    string
	events chan event

	mu      sync.Mutex
	running []*process
}

func newStage() (*stage, error) {
	dir, err := os.MkdirTemp("", "rondo-recovery-")
	if err != nil {
		return nil, err
	}
	return &stage{dir: dir, events: make(chan event, maxEvents)}, nil
}

// process is a command whose standard output is events.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   tail
	ended chan struct{} // closed when it has, after err is set
	err   error
}

// start starts a command in a process group of its own. The kernel ends it with the thread that
// calls, which must be locked and live as long as this program.
func (s *stage) start(ctx context.Context, name string, argv ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Everything is on loopback, where Gloo does not look by itself.
	p.cmd.Env = append(os.Environ(), "TMPDIR="+s.dir, "GLOO_SOCKET_IFNAME=lo")
	p.cmd.Stderr = &p.log
	p.cmd.WaitDelay = endTimeout
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.mu.Lock()
	s.running = append(s.running, p)
	s.mu.Unlock()
	go func() {
		defer close(p.ended)
		err := s.read(ctx, p, bufio.NewScanner(stdout))
		p.err = errors.Join(p.cmd.Wait(), err)
	}()
	return p, nil
}

// read passes a process's events on until it ends, or ctx does.
func (s *stage) read(ctx context.Context, p *process, lines *bufio.Scanner) error {
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		e, err := parseEvent(lines.Bytes())
		if err != nil {
			return err
		}
		e.At, e.From = time.Now(), p
		select {
		case s.events <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return lines.Err()
}

// pid of the process.
func (p *process) pid() int { return p.cmd.Process.Pid }

// end kills the process and waits until it is gone.
func (p *process) end() error {
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // the group; it may have ended already
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s (process %d) does not end", p.name, p.pid())
	}
}

// dead returns why the process has ended; nil if it runs.
func (p *process) dead() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %w; the end of its log:\n%s", p.name, p.err, p.log.String())
	default:
		return nil
	}
}

// close ends all processes and removes the folder.
func (s *stage) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.running {
		errs = append(errs, p.end())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - logTail; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
