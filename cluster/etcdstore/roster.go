package etcdstore

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// mostInline is the largest plan, in bytes, that is stored as one value: some 300 workers. A
	// larger one has its lists in rosters, which a worker reads once, whatever else changes in the
	// plan.
	mostInline = 64 << 10
	// partBytes is the size of a roster's parts. etcd takes requests of 1.5 MB.
	partBytes = 256 << 10
	// mostRoster is the most bytes of a roster: 1 KiB for each worker of the largest ring.
	mostRoster = 16 << 20
	// mostDropped is how many rosters are deleted with one plan at most. etcd takes 128 operations.
	mostDropped = 64
)

// errRosterGone: a roster was deleted, as it is when a newer plan does without it.
var errRosterGone = errors.New("a part of it is gone")

func (k keys) rostersPrefix() string { return k.root + "rosters/" }

func (k keys) rosterPrefix(name string) string { return k.rostersPrefix() + name + "/" }

func (k keys) rosterKey(digest []byte, part int) string {
	return k.rosterPrefix(hex.EncodeToString(digest)) + strconv.Itoa(part)
}

// rosterOf returns the name of a roster, its digest in hex, in the key of one of its parts.
func (k keys) rosterOf(key []byte) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(key), k.rostersPrefix()), "/")
	return name
}

// packed is a roster as it is stored.
type packed struct {
	place *rondov1.RosterPlace
	bytes []byte
}

func (p packed) name() string { return hex.EncodeToString(p.place.Digest) }

func pack(r *rondov1.Roster) packed {
	message := encode(r)
	var to bytes.Buffer
	w, err := flate.NewWriter(&to, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(message)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("etcdstore: compressing in memory: %v", err))
	}
	digest := sha256.Sum256(to.Bytes())
	return packed{&rondov1.RosterPlace{Digest: digest[:], Stored: int64(to.Len()),
		Length: int64(len(message))}, to.Bytes()}
}

// unpack returns the roster at a place. part reads its parts.
func unpack(at *rondov1.RosterPlace, part func(i int) ([]byte, error)) (*rondov1.Roster, error) {
	if at.Stored < 0 || at.Stored > mostRoster || at.Length < 0 || at.Length > mostRoster {
		return nil, fmt.Errorf("%w: a part of the plan with %d bytes, %d stored: it may have %d",
			errUnreadable, at.Length, at.Stored, mostRoster)
	}
	var stored []byte
	for i := 0; int64(len(stored)) < at.Stored; i++ {
		value, err := part(i)
		if err != nil {
			return nil, err
		}
		if want := min(partBytes, at.Stored-int64(len(stored))); int64(len(value)) != want {
			return nil, fmt.Errorf("%w: part %d has %d bytes and not %d", errUnreadable, i,
				len(value), want)
		}
		stored = append(stored, value...)
	}
	if digest := sha256.Sum256(stored); !bytes.Equal(digest[:], at.Digest) {
		return nil, fmt.Errorf("%w: its parts have the digest %x and not %x", errUnreadable, digest,
			at.Digest)
	}
	unpacked := flate.NewReader(bytes.NewReader(stored))
	message, err := io.ReadAll(io.LimitReader(unpacked, at.Length+1))
	r := &rondov1.Roster{}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: decompressing its parts: %w", errUnreadable, err)
	case int64(len(message)) != at.Length:
		return nil, fmt.Errorf("%w: its parts do not have %d bytes", errUnreadable, at.Length)
	}
	if err := proto.Unmarshal(message, r); err != nil {
		return nil, fmt.Errorf("%w: not a roster: %w", errUnreadable, err)
	}
	return r, nil
}

// places returns the places of a plan's rosters.
func places(p *rondov1.Plan) (all []*rondov1.RosterPlace) {
	for _, at := range []*rondov1.RosterPlace{p.MembersIn, p.EvictedIn, p.LastIn} {
		if at != nil {
			all = append(all, at)
		}
	}
	return all
}

// takeOut moves the lists of a large plan to rosters.
func takeOut(p *rondov1.Plan) (rosters []packed) {
	if proto.Size(p) <= mostInline {
		return nil
	}
	out := func(r *rondov1.Roster) *rondov1.RosterPlace {
		if proto.Size(r) == 0 {
			return nil
		}
		rosters = append(rosters, pack(r))
		return rosters[len(rosters)-1].place
	}
	p.MembersIn = out(&rondov1.Roster{Members: p.Members})
	p.EvictedIn = out(&rondov1.Roster{Evicted: p.Evicted})
	p.LastIn = out(&rondov1.Roster{Members: p.Last})
	p.Members, p.Evicted, p.Last = nil, nil, nil
	return rosters
}

// putBack is the reverse of takeOut.
func putBack(p *rondov1.Plan, read func(*rondov1.RosterPlace) (*rondov1.Roster, error)) error {
	of := make(map[*rondov1.RosterPlace]*rondov1.Roster)
	for _, at := range places(p) {
		r, err := read(at)
		if err != nil {
			return err
		}
		of[at] = r
	}
	p.Members = append(p.Members, of[p.MembersIn].GetMembers()...)
	p.Evicted = append(p.Evicted, of[p.EvictedIn].GetEvicted()...)
	p.Last = append(p.Last, of[p.LastIn].GetMembers()...)
	p.MembersIn, p.EvictedIn, p.LastIn = nil, nil, nil
	return nil
}

// rosterReader reads rosters, and has those of the plan that it read last.
type rosterReader struct {
	store *Store
	mu    sync.Mutex
	last  map[string]*rondov1.Roster
}

// restore puts back a plan's rosters. It reads those that the last plan did not have.
func (c *rosterReader) restore(ctx context.Context, p *rondov1.Plan) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := make(map[string]*rondov1.Roster)
	err := putBack(p, func(at *rondov1.RosterPlace) (r *rondov1.Roster, err error) {
		if r = c.last[string(at.Digest)]; r == nil {
			r, err = c.read(ctx, at)
		}
		kept[string(at.Digest)] = r
		return r, err
	})
	if err == nil {
		c.last = kept
	}
	return err
}

func (c *rosterReader) read(ctx context.Context, at *rondov1.RosterPlace) (
	*rondov1.Roster, error) {
	s := c.store
	return unpack(at, func(i int) (value []byte, err error) {
		err = s.untilDone(ctx, "reading the plan", func(ctx context.Context) error {
			answer, err := s.client.Get(ctx, s.rosterKey(at.Digest, i))
			if err != nil {
				return err
			}
			if len(answer.Kvs) == 0 {
				return errRosterGone
			}
			value = answer.Kvs[0].Value
			return nil
		})
		return value, err
	})
}

// restoreFrom returns a function that puts back a plan's rosters from keys that were read together.
func (k keys) restoreFrom(kvs []*mvccpb.KeyValue) func(*rondov1.Plan) error {
	find := func(at *rondov1.RosterPlace) (*rondov1.Roster, error) {
		return unpack(at, func(i int) ([]byte, error) {
			key := []byte(k.rosterKey(at.Digest, i))
			for _, kv := range kvs {
				if bytes.Equal(kv.Key, key) {
					return kv.Value, nil
				}
			}
			return nil, errRosterGone
		})
	}
	return func(p *rondov1.Plan) error { return putBack(p, find) }
}

// drops returns the deletions of rosters that a plan does without.
func (l *leadership) drops(rosters []packed) (drops []clientv3.Op) {
	kept := make(map[string]bool, len(rosters))
	for _, r := range rosters {
		kept[r.name()] = true
	}
	for name := range l.rosters {
		if !kept[name] && len(drops) < mostDropped {
			drops = append(drops, clientv3.OpDelete(l.store.rosterPrefix(name),
				clientv3.WithPrefix()))
		}
	}
	return drops
}

// putRosters stores those of a plan's rosters that etcd lacks.
func (l *leadership) putRosters(ctx context.Context, rosters []packed) error {
	for _, r := range rosters {
		if r.place.Length > mostRoster {
			return fmt.Errorf("the plan has a list of %d bytes, more than %d: use fewer workers",
				r.place.Length, mostRoster)
		}
		if l.rosters[r.name()] {
			continue
		}
		l.rosters[r.name()] = false
		for i := 0; i*partBytes < len(r.bytes); i++ {
			part := string(r.bytes[i*partBytes : min((i+1)*partBytes, len(r.bytes))])
			err := l.fenced(ctx, "storing the plan", func(ctx context.Context) error {
				answer, err := l.store.client.Txn(ctx).If(l.stillLeads()).
					Then(clientv3.OpPut(l.store.rosterKey(r.place.Digest, i), part)).Commit()
				if err == nil && !answer.Succeeded {
					return cluster.ErrDeposed
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		l.rosters[r.name()] = true
	}
	return nil
}
