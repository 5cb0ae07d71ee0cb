package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"rondo/internal/port"
	"rondo/internal/procgroup"
)

// Limits on the output that is read from a process.
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
	quit   chan struct{}  // closed when nobody takes events any more
	work   sync.WaitGroup // of the goroutines that send events

	mu      sync.Mutex
	running []*process
	ports   []*port.Port // reserved for them
}

func newStage() (*stage, error) {
	dir, err := os.MkdirTemp("", "rondo-recovery-")
	if err != nil {
		return nil, err
	}
	return &stage{dir: dir, events: make(chan event, maxEvents), quit: make(chan struct{})}, nil
}

// process is a command whose standard output is events.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   tail
	ended chan struct{} // closed when it has, after err is set
	err   error
}

// start starts a command in a process group of its own. The kernel ends it with the calling thread,
// which must be locked and live as long as this program.
func (s *stage) start(name string, argv ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	procgroup.Bind(p.cmd, syscall.SIGKILL)
	// Everything is on loopback, which Gloo does not choose by itself.
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
	s.work.Go(func() {
		defer close(p.ended)
		err := s.read(p, bufio.NewScanner(stdout))
		p.err = errors.Join(p.cmd.Wait(), err)
	})
	return p, nil
}

// read passes a process's events on until it ends or the stage is closed. A line that is no event
// becomes an unreadable event that says why.
func (s *stage) read(p *process, lines *bufio.Scanner) error {
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		e, err := parseEvent(lines.Bytes())
		if err != nil {
			e = event{Event: unreadable, Reason: p.name + ": " + err.Error()}
		}
		e.At, e.From = time.Now(), p
		if !s.pass(e) {
			return nil
		}
	}
	return lines.Err()
}

// pass delivers an event to the receiver; false: there is no receiver any more.
func (s *stage) pass(e event) bool {
	select {
	case s.events <- e:
		return true
	case <-s.quit:
		return false
	}
}

// pid of the process.
func (p *process) pid() int { return p.cmd.Process.Pid }

// end kills the process and waits until it is gone.
func (p *process) end() error {
	_ = procgroup.Signal(p.pid(), syscall.SIGKILL) // it may have ended already
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s (process %d) does not end", p.name, p.pid())
	}
}

// errEnded is an end with exit code 0, which none of these processes should reach by itself.
var errEnded = errors.New("too early")

// dead returns why the process has ended; nil if it runs.
func (p *process) dead() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %v (%w); the end of its log:\n%s", p.name,
			p.cmd.ProcessState, cmp.Or(p.err, errEnded), p.log.String())
	default:
		return nil
	}
}

// killed reports whether a process that has ended was killed.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL
}

// dead returns why those processes have ended that nobody has killed; nil if there are none.
func (s *stage) dead() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.running {
		if err := p.dead(); err != nil && !p.killed() {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close ends all processes, frees their ports and removes the folder.
func (s *stage) close() error {
	close(s.quit)
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.running {
		errs = append(errs, p.end())
	}
	if errors.Join(errs...) == nil {
		s.work.Wait()
	}
	for _, p := range s.ports {
		errs = append(errs, p.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// tail keeps the end of its input.
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
