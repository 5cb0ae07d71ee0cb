package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"rondo/cluster"
)

// What part of its time a lease lasts longer at the store than by its holder's clock, and after
// what part a holder that reaches the store learns that the store has ended it.
const (
	storeLag = 10
	renewals = 3
)

// entry is a member or a candidate under its lease.
type entry struct {
	client *Client
	ttl    time.Duration
	member cluster.Member
	leader cluster.Leader
	lost   chan struct{} // closed when the lease has ended, as far as its holder knows
	ended  bool          // the store has no entry any more
	given  bool          // back; nothing is renewed any more
	own    *time.Timer   // until the holder counts the lease as lost; nil: it is renewed
	stored *time.Timer   // until the store ends it; nil: it is renewed, or the store is away
}

func (c *Client) newEntry(ttl time.Duration) *entry {
	return &entry{client: c, ttl: ttl, lost: make(chan struct{})}
}

// Expire ends the leases of members or coordinators at once, as if they had not been heard from in
// time. Their holders know it at once too.
func (s *Store) Expire(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		for _, e := range s.entries(id) {
			s.end(e)
			e.lose()
		}
	}
}

// Depose ends the lease of a member or coordinator at the store, behind its holder's back, who
// learns of it when it renews the lease next.
func (s *Store) Depose(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries(id) {
		s.end(e)
		e.own = s.after(e.ttl/renewals, e.lose)
	}
}

// Cut takes the store away from a client, or gives it back. Its requests wait, or fail after the
// request timeout; its leases run out.
func (s *Store) Cut(client string, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[client] = away
	s.renew()
}

// Outage takes the store away from everybody, or gives it back. No lease ends at a store that is
// away, but their holders count them as lost by their own clocks.
func (s *Store) Outage(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = away
	s.renew()
}

// renew looks at all leases again after it has changed who reaches the store. The lock is held.
func (s *Store) renew() {
	for _, e := range slices.Concat(s.members, s.candidates) {
		e.renew()
	}
	s.touch()
}

// renew starts the clocks of a lease that is not renewed any more, and stops those of one that
// is again. The lock is held.
func (e *entry) renew() {
	s, reached := e.client.store, e.client.reached()
	renewed := reached && !e.given && !e.isLost()
	if e.own == nil && !renewed && !e.given && !e.isLost() {
		e.own = s.after(e.ttl, e.lose)
	}
	if e.stored == nil && !renewed && !s.out {
		e.stored = s.after(e.ttl+e.ttl/storeLag, func() {
			s.end(e)
			e.lose()
		})
	}
	if renewed {
		e.own = stop(e.own)
	}
	if renewed || s.out {
		e.stored = stop(e.stored)
	}
}

// after calls fn with the lock held when d has passed.
func (s *Store) after(d time.Duration, fn func()) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		fn()
	})
}

func stop(timer *time.Timer) *time.Timer {
	if timer != nil {
		timer.Stop()
	}
	return nil
}

func (e *entry) isLost() bool {
	select {
	case <-e.lost:
		return true
	default:
		return false
	}
}

// lose tells the holder. The lock is held.
func (e *entry) lose() {
	if !e.isLost() && !e.given {
		close(e.lost)
	}
}

// end removes an entry. The lock is held.
func (s *Store) end(e *entry) {
	e.ended = true
	e.own, e.stored = stop(e.own), stop(e.stored)
	is := func(other *entry) bool { return other == e }
	s.members = slices.DeleteFunc(s.members, is)
	s.candidates = slices.DeleteFunc(s.candidates, is)
	s.touch()
}

// Register implements cluster.Registry.
func (c *Client) Register(ctx context.Context, m cluster.Member, ttl time.Duration) (
	cluster.Registration, error) {
	if m.ID == "" || ttl <= 0 {
		return nil, fmt.Errorf("registering worker %q for %v: needs an id and a time", m.ID, ttl)
	}
	e := c.newEntry(ttl)
	e.member = m
	err := c.untilDone(ctx, func() error {
		c.store.members = append(c.store.members, e)
		c.store.touch()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Lost implements cluster.Registration and cluster.Leadership.
func (e *entry) Lost() <-chan struct{} { return e.lost }

// Leave implements cluster.Registration.
func (e *entry) Leave(ctx context.Context) error {
	s := e.client.store
	s.mu.Lock()
	again := e.given || e.ended
	e.given = true
	e.own = stop(e.own)
	if !again {
		e.renew()
	}
	s.mu.Unlock()
	if again {
		return nil
	}
	return e.client.once(ctx, func() error {
		if !e.ended {
			s.end(e)
		}
		return nil
	})
}

// Campaign implements cluster.Election.
func (c *Client) Campaign(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	cluster.Leadership, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("--lease-ttl %v: must be above zero", ttl)
	}
	s := c.store
	var mine *entry
	elected := fmt.Errorf("%s is elected", self.ID)
	err := c.follow(ctx, func() func() error {
		if mine == nil || mine.ended || mine.isLost() {
			mine = c.newEntry(ttl)
			mine.leader = self
			s.candidates = append(s.candidates, mine)
			s.touch()
		}
		if s.candidates[0] == mine {
			return func() error { return elected }
		}
		return nil
	})
	if errors.Is(err, elected) {
		return leadership{mine}, nil
	}
	if mine != nil {
		_ = mine.Leave(context.WithoutCancel(ctx)) // or its lease ends
	}
	return nil, err
}

// leadership is a candidate that has become the oldest.
type leadership struct{ *entry }

// LoadPlan implements cluster.Leadership.
func (l leadership) LoadPlan(ctx context.Context) (plan cluster.Plan, err error) {
	err = l.fenced(ctx, func() { plan = copyPlan(l.client.store.plan) })
	return plan, err
}

// PutPlan implements cluster.Leadership.
func (l leadership) PutPlan(ctx context.Context, p cluster.Plan) error {
	return l.fenced(ctx, func() {
		s := l.client.store
		s.plan = copyPlan(p)
		s.writes++
		s.touch()
	})
}

// fenced makes a request, with the lock held, if the leadership stands. It waits for a store that
// is away until the leadership is lost.
func (l leadership) fenced(ctx context.Context, request func()) error {
	if l.isLost() {
		return cluster.ErrDeposed
	}
	limited, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-l.lost:
			cancel()
		case <-limited.Done():
		}
	}()
	defer func() {
		cancel()
		<-watched
	}()
	err := l.client.untilDone(limited, func() error {
		if l.ended || l.isLost() {
			return cluster.ErrDeposed
		}
		request()
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return cluster.ErrDeposed
	}
	return err
}

// WatchMembers implements cluster.Leadership.
func (l leadership) WatchMembers(ctx context.Context, fn func([]cluster.Member) error) error {
	var told []cluster.Member
	first := true
	return l.client.follow(ctx, func() func() error {
		var members []cluster.Member
		for _, e := range l.client.store.members {
			members = append(members, e.member)
		}
		if !first && slices.Equal(members, told) {
			return nil
		}
		first, told = false, members
		return func() error { return fn(slices.Clone(members)) }
	})
}

// Resign implements cluster.Leadership.
func (l leadership) Resign(ctx context.Context) error { return l.Leave(ctx) }
