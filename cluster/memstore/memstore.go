// Package memstore is a job's store in memory, for tests: it behaves as cluster/etcdstore does,
// holds nothing after the process, and ends leases when it is told to, by no clock. It may
// import cluster.
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

// Store is one job's store. It implements cluster.Submissions, Registry and Election.
type Store struct {
	mu         sync.Mutex
	spec       []byte
	plan       cluster.Plan
	writes     int // of the plan
	members    []*entry
	candidates []*entry // the oldest leads
	changed    chan struct{}
}

var (
	_ cluster.Submissions = (*Store)(nil)
	_ cluster.Registry    = (*Store)(nil)
	_ cluster.Election    = (*Store)(nil)
)

// entry is a member or a candidate under its lease.
type entry struct {
	store  *Store
	member cluster.Member
	leader cluster.Leader
	lost   chan struct{} // closed when the lease has ended
	ended  bool          // the lease has ended, or was given back
}

// New returns the store of a job that nobody has submitted.
func New() *Store { return &Store{changed: make(chan struct{})} }

// Expire ends the leases of members or coordinators at once, as if they had not been heard from in
// time.
func (s *Store) Expire(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		for _, e := range s.entries(id) {
			s.end(e)
			close(e.lost)
		}
	}
}

// Await returns when a member or a coordinator has an entry, or ctx ends.
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

// entries returns what is registered under an id. The lock is held.
func (s *Store) entries(id string) (found []*entry) {
	for _, e := range slices.Concat(s.members, s.candidates) {
		if e.member.ID == id || e.leader.ID == id {
			found = append(found, e)
		}
	}
	return found
}

// end removes an entry. The lock is held.
func (s *Store) end(e *entry) {
	e.ended = true
	is := func(other *entry) bool { return other == e }
	s.members = slices.DeleteFunc(s.members, is)
	s.candidates = slices.DeleteFunc(s.candidates, is)
	s.touch()
}

// touch wakes whoever follows the store. The lock is held.
func (s *Store) touch() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// follow calls look, with the lock held, now and after every change. look returns what is to be
// called without the lock, or nil.
func (s *Store) follow(ctx context.Context, look func() func() error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		act, changed := look(), s.changed
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

// PutSpec implements cluster.Submissions.
func (s *Store) PutSpec(ctx context.Context, spec []byte) ([]byte, bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spec != nil && s.plan.Phase != cluster.Ended {
		return bytes.Clone(s.spec), false, nil
	}
	if s.spec != nil {
		s.plan = s.plan.Next()
		s.writes++
	}
	s.spec = bytes.Clone(spec)
	s.touch()
	return bytes.Clone(spec), true, nil
}

// Spec implements cluster.Registry.
func (s *Store) Spec(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spec == nil {
		return nil, cluster.ErrNoSpec
	}
	return bytes.Clone(s.spec), nil
}

// Register implements cluster.Registry.
func (s *Store) Register(ctx context.Context, m cluster.Member, ttl time.Duration) (
	cluster.Registration, error) {
	if m.ID == "" || ttl <= 0 {
		return nil, fmt.Errorf("registering worker %q for %v: needs an id and a time", m.ID, ttl)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &entry{store: s, member: m, lost: make(chan struct{})}
	s.members = append(s.members, e)
	s.touch()
	return e, nil
}

// Lost implements cluster.Registration and cluster.Leadership.
func (e *entry) Lost() <-chan struct{} { return e.lost }

// Leave implements cluster.Registration.
func (e *entry) Leave(context.Context) error {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	if !e.ended {
		e.store.end(e)
	}
	return nil
}

// WatchPlan implements cluster.Registry.
func (s *Store) WatchPlan(ctx context.Context, fn func(cluster.Plan) error) error {
	told := -1
	return s.follow(ctx, func() func() error {
		if s.writes == told {
			return nil
		}
		told = s.writes
		plan := copyPlan(s.plan)
		return func() error { return fn(plan) }
	})
}

// Leader implements cluster.Registry.
func (s *Store) Leader(ctx context.Context) (cluster.Leader, error) {
	if err := ctx.Err(); err != nil {
		return cluster.Leader{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.candidates) == 0 {
		return cluster.Leader{}, cluster.ErrNoLeader
	}
	return s.candidates[0].leader, nil
}

// Campaign implements cluster.Election.
func (s *Store) Campaign(ctx context.Context, self cluster.Leader, ttl time.Duration) (
	cluster.Leadership, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("--lease-ttl %v: must be above zero", ttl)
	}
	var mine *entry
	elected := fmt.Errorf("%s is elected", self.ID)
	err := s.follow(ctx, func() func() error {
		if mine == nil || mine.ended {
			mine = &entry{store: s, leader: self, lost: make(chan struct{})}
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
		_ = mine.Leave(ctx)
	}
	return nil, err
}

// leadership is a candidate that has become the oldest.
type leadership struct{ *entry }

// LoadPlan implements cluster.Leadership.
func (l leadership) LoadPlan(ctx context.Context) (cluster.Plan, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if err := l.fence(ctx); err != nil {
		return cluster.Plan{}, err
	}
	return copyPlan(l.store.plan), nil
}

// PutPlan implements cluster.Leadership.
func (l leadership) PutPlan(ctx context.Context, p cluster.Plan) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if err := l.fence(ctx); err != nil {
		return err
	}
	l.store.plan = copyPlan(p)
	l.store.writes++
	l.store.touch()
	return nil
}

// fence returns an error unless the leadership stands. The lock is held.
func (l leadership) fence(ctx context.Context) error {
	if l.ended {
		return cluster.ErrDeposed
	}
	return ctx.Err()
}

// WatchMembers implements cluster.Leadership.
func (l leadership) WatchMembers(ctx context.Context, fn func([]cluster.Member) error) error {
	var told []cluster.Member
	first := true
	return l.store.follow(ctx, func() func() error {
		var members []cluster.Member
		for _, e := range l.store.members {
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

func copyPlan(p cluster.Plan) cluster.Plan {
	p.Members, p.LaneEnds = slices.Clone(p.Members), slices.Clone(p.LaneEnds)
	p.Evicted = slices.Clone(p.Evicted)
	return p
}
