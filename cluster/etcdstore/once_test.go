package etcdstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// TestUsersAreMade: a request is repeated with pauses while etcd's users change, until its timeout.
func TestUsersAreMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Store{timeout: 5 * time.Second}
		const few, many = 10, 1000
		for changes, want := range map[int]error{2: nil, many: rpctypes.ErrAuthOldRevision} {
			calls, since := 0, time.Now()
			err := s.once(t.Context(), "asking", func(context.Context) error {
				if calls++; calls <= changes {
					return rpctypes.ErrAuthOldRevision
				}
				return nil
			})
			if permanent(err) {
				t.Errorf("%v is not worth another try", err)
			}
			took := time.Since(since)
			if !errors.Is(err, want) || calls > few || took < backoffFirst || took > s.timeout {
				t.Errorf("%d changes: %v after %d calls and %v", changes, err, calls, took)
			}
		}
	})
}
