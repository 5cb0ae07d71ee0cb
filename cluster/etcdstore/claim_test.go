package etcdstore

import (
	"testing"
	"time"

	"rondo/cluster"
)

// TestUnregister: all registrations of a dead process are removed at once, and no others.
func TestUnregister(t *testing.T) {
	s, ctx := open(t), t.Context()
	for _, m := range []cluster.Member{
		{ID: "dead", Host: "a", PID: 1}, {ID: "dead.2", Host: "a", PID: 1},
		{ID: "neighbour", Host: "a", PID: 2}, {ID: "namesake", Host: "b", PID: 1},
	} {
		registration, err := s.Register(ctx, m, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := registration.Leave(ctx); err != nil {
				t.Error(err)
			}
		}()
	}
	if err := s.Unregister(ctx, "a", 1); err != nil {
		t.Fatal(err)
	}
	answer, err := s.client.Get(ctx, s.membersPrefix()+"dead")
	if err != nil || len(answer.Kvs) > 0 {
		t.Errorf("the dead process is there: %v, %v", answer.Kvs, err)
	}
	for id, want := range map[string]int64{"dead.2": 0, "neighbour": 1, "namesake": 1} {
		answer, err := s.client.Get(ctx, s.memberKey(id))
		if err != nil || answer.Count != want {
			t.Errorf("%s: %d entries, %v; want %d", id, answer.Count, err, want)
		}
	}
}
