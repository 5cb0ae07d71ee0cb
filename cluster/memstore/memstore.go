// Package memstore is a job's store in memory, for tests. It behaves like cluster/etcdstore and
// keeps nothing beyond the process. Its clients can be disconnected, one by one or all together.
// Their leases then end by the clock, which may be testing/synctest's. It may import cluster.
package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rondo/cluster"
)

// requestTimeout is how long a single request waits for an unavailable store.
const requestTimeout = 5 * time.Second

// errAway is the error of such a request.
var errAway = fmt.Errorf("the store did not answer for %v", requestTimeout)

// Store is one job's store. Its own Client cannot be disconnected alone.
type Store struct {
	Client

	mu         sync.Mutex
	spec       []byte
	plan       cluster.Plan
	writes     int  // writes of the plan
	lost       bool // it went back to an earlier plan
	claims     map[string]bool
	tip        cluster.Tip
	members    []*entry
	candidates []*entry // the oldest leads
	changed    chan struct{}

	cut map[string]bool // disconnected clients
	out bool            // all clients are disconnected
}

// Client is one process's view of the store. It implements cluster.Submissions, Registry, Election
// and Viewer.
type Client struct {
	store *Store
	name  string
}

var (
	_ cluster.Submissions = (*Client)(nil)
	_ cluster.Registry    = (*Client)(nil)
	_ cluster.Election    = (*Client)(nil)
	_ cluster.Viewer      = (*Client)(nil)
)

// New returns the store of a job that has not been submitted.
func New() *Store {
	s := &Store{
		changed: make(chan struct{}), cut: make(map[string]bool), claims: make(map[string]bool),
	}
	s.Client = Client{store: s}
	return s
}

// As returns the store as the process of this name sees it.
func (s *Store) As(name string) *Client { return &Client{store: s, name: name} }

// Await returns when a member or coordinator has an entry, or ctx ends.
func (s *Store) Await(ctx context.Context, id string) error {
	found := fmt.Errorf("%s has an entry", id)
	err := s.follow(ctx, func() func() error {
		if len(s.entries(id)) > 0 {
			return func() error { return found }
		}
		return nil
	})
	if errors.Is(err, found) {
		return nil
	}
	return err
}

// entries returns the entries under an id. The caller holds the lock.
func (s *Store) entries(id string) (found []*entry) {
	for _, e := range slices.Concat(s.members, s.candidates) {
		if e.member.ID == id || e.leader.ID == id {
			found = append(found, e)
		}
	}
	return found
}

// touch wakes the callers of follow. The caller holds the lock.
func (s *Store) touch() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// reached reports whether the client reaches the store. The caller holds the lock.
func (c *Client) reached() bool { return !c.store.out && !c.store.cut[c.name] }

// follow calls look, with the lock held, now and after every change, while the client reaches the
// store. look returns a function to call without the lock, or nil.
func (c *Client) follow(ctx context.Context, look func() func() error) error {
	s := c.store
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		var act func() error
		s.mu.Lock()
		if c.reached() {
			act = look()
		}
		changed := s.changed
		s.mu.Unlock()
		if act != nil {
			if err := act(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// untilDone makes a request, with the lock held, as soon as the client reaches the store.
func (c *Client) untilDone(ctx context.Context, request func() error) error {
	made := errors.New("the request was made")
	var result error
	err := c.follow(ctx, func() func() error {
		result = request()
		return func() error { return made }
	})
	if errors.Is(err, made) {
		return result
	}
	return err
}

func (c *Client) once(ctx context.Context, request func() error) error {
	limited, cancel := context.WithTimeoutCause(ctx, requestTimeout, errAway)
	defer cancel()
	err := c.untilDone(limited, request)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return errAway
	}
	return err
}

// PutSpec implements cluster.Submissions.
func (c *Client) PutSpec(ctx context.Context, spec []byte) ([]byte, bool, error) {
	return c.PutRun(ctx, spec, func([]byte) bool { return true })
}

// PutRun implements cluster.Submissions.
func (c *Client) PutRun(ctx context.Context, spec []byte, over func([]byte) bool) (
	stored []byte, created bool, err error) {
	s := c.store
	err = c.untilDone(ctx, func() error {
		if s.spec != nil && (s.plan.Phase != cluster.Ended || !over(bytes.Clone(s.spec))) {
			stored = bytes.Clone(s.spec)
			return nil
		}
		if s.spec != nil {
			s.plan = s.plan.Next()
			s.writes++
			clear(s.claims)
			s.tip = cluster.Tip{}
		}
		s.spec, stored, created = bytes.Clone(spec), bytes.Clone(spec), true
		s.touch()
		return nil
	})
	return stored, created, err
}

// Spec implements cluster.Registry.
func (c *Client) Spec(ctx context.Context) (spec []byte, err error) {
	err = c.once(ctx, func() error {
		if c.store.spec == nil {
			return cluster.ErrNoSpec
		}
		spec = bytes.Clone(c.store.spec)
		return nil
	})
	return spec, err
}

// Claim returns true to the first caller for a name in this run of the job.
func (c *Client) Claim(ctx context.Context, name string) (first bool, err error) {
	err = c.once(ctx, func() error {
		first = !c.store.claims[name]
		c.store.claims[name] = true
		return nil
	})
	return first, err
}

// Tip implements cluster.Registry.
func (c *Client) Tip(ctx context.Context) (tip cluster.Tip, err error) {
	err = c.once(ctx, func() error {
		tip = c.store.tip
		return nil
	})
	return tip, err
}

// PutTip implements cluster.Registry.
func (c *Client) PutTip(ctx context.Context, t cluster.Tip) error {
	return c.once(ctx, func() error {
		if c.store.tip.Before(t) {
			c.store.tip = t
		}
		return nil
	})
}

// WatchPlan implements cluster.Registry.
func (c *Client) WatchPlan(ctx context.Context, fn func(cluster.Plan) error) error {
	told := -1
	return c.follow(ctx, func() func() error {
		if c.store.writes == told {
			return nil
		}
		told = c.store.writes
		plan := copyPlan(c.store.plan)
		return func() error { return fn(plan) }
	})
}

// Leader implements cluster.Registry.
func (c *Client) Leader(ctx context.Context) (leader cluster.Leader, err error) {
	err = c.once(ctx, func() error {
		if len(c.store.candidates) == 0 {
			return cluster.ErrNoLeader
		}
		leader = c.store.candidates[0].leader
		return nil
	})
	return leader, err
}

// View implements cluster.Viewer.
func (c *Client) View(ctx context.Context) (view cluster.View, err error) {
	s := c.store
	err = c.once(ctx, func() error {
		if s.spec == nil {
			return cluster.ErrNoSpec
		}
		view.Spec, view.Plan = bytes.Clone(s.spec), copyPlan(s.plan)
		for _, e := range s.members {
			view.Members = append(view.Members, e.member)
		}
		view.Members = cluster.RingOrder(view.Members)
		if len(s.candidates) > 0 {
			view.Leader = s.candidates[0].leader
		}
		return nil
	})
	return view, err
}

func copyPlan(p cluster.Plan) cluster.Plan {
	p.Members, p.LaneEnds = slices.Clone(p.Members), slices.Clone(p.LaneEnds)
	p.Evicted, p.Last = slices.Clone(p.Evicted), slices.Clone(p.Last)
	return p
}
