package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"rondo/cluster"
)

// storeLag and renewals are fractions of a lease's time. The store ends a lease ttl/storeLag later
// than its holder's clock. A holder that reaches the store learns within ttl/renewals that the
// store has ended it.
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
	lost   chan struct{} // closed when the holder knows that the lease has ended
	ended  bool          // the store has removed the entry
	given  bool          // given back by its holder, not renewed any more
	own    *time.Timer   // until the holder counts the lease as lost; nil: it is renewed
	stored *time.Timer   // until the store ends it; nil: it is renewed, or the store is away
}

func (c *Client) newEntry(ttl time.Duration) *entry {
	return &entry{client: c, ttl: ttl, lost: make(chan struct{})}
}

// Expire ends the leases of members or coordinators at once, as if they had not been renewed in
// time. Their holders learn of it at once.
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

// Depose ends the lease of a member or coordinator in the store. The holder learns of it at its
// next renewal.
func (s *Store) Depose(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries(id) {
		s.end(e)
		e.own = s.after(e.ttl/renewals, e.lose)
	}
}

// LostWrites reports whether the store has gone back.
func (s *Store) LostWrites() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// GoBack puts an earlier plan in place of the present one, as an etcd that was restored from a
// backup has it. The leases of coordinators end, and those of members if it was emptied.
func (s *Store) GoBack(to cluster.Plan, emptied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := slices.Clone(s.candidates)
	if emptied {
		to, ended = cluster.Plan{}, append(ended, s.members...)
	}
	for _, e := range ended {
		s.end(e)
		e.lose()
	}
	s.plan, s.lost, s.tip = copyPlan(to), true, cluster.Tip{}
	s.writes++
	s.touch()
}

// Cut disconnects a client from the store, or reconnects it. While it is away its requests wait, or
// fail after the request timeout, and its leases run out.
func (s *Store) Cut(client string, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[client] = away
	s.renew()
}

// Outage makes the store unavailable to all clients, or available again. An unavailable store ends
// no lease, but the holders count them as lost by their own clocks.
func (s *Store) Outage(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = away
	s.renew()
}

// renew updates all leases after a change in which clients reach the store. The caller holds the
// lock.
func (s *Store) renew() {
	for _, e := range slices.Concat(s.members, s.candidates) {
		e.renew()
	}
	s.touch()
}

// renew starts the timers of a lease that is no longer renewed, and stops them when it is renewed
// again. The caller holds the lock.
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

// lose notifies the holder. The caller holds the lock.
func (e *entry) lose() {
	if !e.isLost() && !e.given {
		close(e.lost)
	}
}

// end removes an entry. The caller holds the lock.
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
		_ = mine.Leave(context.WithoutCancel(ctx)) // if it fails, its lease ends
	}
	return nil, err
}

// leadership is the oldest candidate's entry.
type leadership struct{ *entry }

// LoadPlan implements cluster.Leadership.
func (l leadership) LoadPlan(ctx context.Context) (plan cluster.Plan, err error) {
	err = l.fenced(ctx, func() { plan = copyPlan(l.client.store.plan) })
	return plan, err
}

// LoadTip implements cluster.Leadership.
func (l leadership) LoadTip(ctx context.Context) (tip cluster.Tip, err error) {
	err = l.fenced(ctx, func() { tip = l.client.store.tip })
	return tip, err
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

// fenced makes a request with the lock held, if the leadership lasts. It waits for an unavailable
// store until the leadership is lost.
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
