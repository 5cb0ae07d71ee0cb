package busbw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"rondo/internal/procgroup"
)

// endTimeout is how long the ranks may take to end when there are no more orders.
const endTimeout = 10 * time.Second

// group are the ranks as their leader sees them.
type group struct {
	members []member
	kill    context.CancelFunc
}

// member is one rank.
type member struct {
	name  string
	to    io.Closer
	out   *json.Encoder
	in    *json.Decoder
	ended func() error // waits for its end, once it answers no more
}

// form starts the ranks and has them connect.
func form(ctx context.Context, c Config) (*group, error) {
	ctx, kill := context.WithCancel(ctx)
	g := &group{kill: kill}
	l, _ := linkOf(c.Link)
	if l.listen == nil {
		for rank, ends := range newMemoryEnds(c.World) {
			m, err := newGoroutine(ctx, rank, ends)
			if err != nil {
				g.end()
				return nil, err
			}
			g.members = append(g.members, m)
		}
	}
	log := &sharedLog{to: c.Log}
	for rank := len(g.members); rank < c.World; rank++ {
		m, err := newProcess(ctx, rank, c.Rank(rank), log)
		if err != nil {
			g.end()
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		g.members = append(g.members, m)
	}
	if err := g.meet(ctx, c); err != nil {
		g.end()
		return nil, err
	}
	return g, nil
}

// sharedLog collects the standard error of all ranks, each written by a goroutine of its own.
type sharedLog struct {
	mu sync.Mutex // guards to
	to io.Writer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// newProcess starts a rank that is a process with this command line.
func newProcess(
	ctx context.Context, rank int, command []string, log io.Writer,
) (member, error) {
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	// Not in our process group: Ctrl-C reaches it once, from here.
	procgroup.Set(process)
	process.WaitDelay = endTimeout
	process.Stderr = log
	to, err := process.StdinPipe()
	if err != nil {
		return member{}, err
	}
	from, err := process.StdoutPipe()
	if err != nil {
		return member{}, err
	}
	if err := process.Start(); err != nil {
		return member{}, err
	}
	return member{
		name: fmt.Sprintf("rank %d (process %d)", rank, process.Process.Pid),
		to:   to, out: json.NewEncoder(to), in: json.NewDecoder(from),
		ended: sync.OnceValue(process.Wait),
	}, nil
}

// newGoroutine starts a rank that is a goroutine. The pipes are the system's, which have a buffer:
// a reader of JSON may leave the newline behind a value in the pipe, and without a buffer its
// writer would wait for a reader of that.
func newGoroutine(ctx context.Context, rank int, own ends) (member, error) {
	orders, to, err := os.Pipe()
	if err != nil {
		return member{}, err
	}
	from, answers, err := os.Pipe()
	if err != nil {
		return member{}, errors.Join(err, orders.Close(), to.Close())
	}
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, orders, answers, func(link, seat) (ends, error) { return own, nil })
		answers.Close()
		orders.Close()
		done <- err
	}()
	stop := context.AfterFunc(ctx, func() {
		to.Close()
		from.Close()
	})
	return member{
		name: fmt.Sprintf("rank %d", rank),
		to:   to, out: json.NewEncoder(to), in: json.NewDecoder(from),
		ended: sync.OnceValue(func() error {
			stop()
			from.Close()
			return <-done
		}),
	}, nil
}

// end has the ranks end, and waits for them.
func (g *group) end() {
	for _, m := range g.members {
		m.to.Close()
	}
	grace := time.AfterFunc(endTimeout, g.kill)
	defer grace.Stop()
	for _, m := range g.members {
		_ = m.ended() // an answer has already reported its error
	}
	g.kill()
}

// meet gives the ranks their seats, and tells each where the others are.
func (g *group) meet(ctx context.Context, c Config) error {
	seats := make([]any, c.World)
	for rank := range seats {
		s := seat{Rank: rank, World: c.World, Link: c.Link, Wire: c.Wire, Address: loopback}
		if len(c.Addresses) > 0 {
			s.Address = c.Addresses[rank]
		}
		seats[rank] = s
	}
	answers, err := g.each(ctx, seats, meetTimeout)
	if err != nil {
		return err
	}
	var all meeting
	for _, a := range answers {
		all.Addresses = append(all.Addresses, a.Address)
		all.Raw = append(all.Raw, a.Raw)
	}
	_, err = g.exchange(ctx, all, 2*meetTimeout)
	return err
}

// exchange writes the same to all ranks, and returns their answers.
func (g *group) exchange(
	ctx context.Context, what any, patience time.Duration,
) ([]answer, error) {
	same := make([]any, len(g.members))
	for rank := range same {
		same[rank] = what
	}
	return g.each(ctx, same, patience)
}

// each sends each rank its own order, and returns their answers. Of several errors it prefers that
// of a rank that has ended, because it caused the others'. If a rank does not answer in time, all
// ranks are ended.
func (g *group) each(
	ctx context.Context, what []any, patience time.Duration,
) ([]answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("a rank has not answered for %v", patience.Round(time.Second)))
	defer cancel()
	stop := context.AfterFunc(ctx, g.kill)
	defer stop()
	answers := make([]answer, len(g.members))
	errs := make([]error, len(g.members))
	var asking sync.WaitGroup
	for rank, m := range g.members {
		asking.Go(func() { answers[rank], errs[rank] = m.ask(what[rank]) })
	}
	asking.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	var first error
	for _, err := range errs {
		var ended *endedError
		if errors.As(err, &ended) {
			return nil, err
		}
		if first == nil {
			first = err
		}
	}
	return answers, first
}

// endedError is a rank that has ended before its time.
type endedError struct {
	name string
	err  error
}

func (e *endedError) Error() string { return fmt.Sprintf("%s has ended: %v", e.name, e.err) }
func (e *endedError) Unwrap() error { return e.err }

// ask writes to the rank, and returns its answer.
func (m member) ask(what any) (answer, error) {
	var a answer
	writing := m.out.Encode(what)
	if err := m.in.Decode(&a); err != nil {
		if end := m.ended(); end != nil {
			err = end
		} else if writing != nil {
			err = writing
		}
		return a, &endedError{m.name, err}
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
