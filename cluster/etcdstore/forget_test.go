package etcdstore

import "testing"

func TestForget(t *testing.T) {
	s, ctx := open(t), t.Context()
	// The other job's name begins with this one's.
	other, err := Open(ctx, Config{Endpoints: []string{endpoint}, Job: t.Name() + "2"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, store := range []*Store{s, other} {
		if _, _, err := store.PutSpec(ctx, []byte("spec")); err != nil {
			t.Fatal(err)
		}
	}
	left := func(of *Store) int64 {
		t.Helper()
		answer, err := of.client.Get(ctx, of.specKey())
		if err != nil {
			t.Fatal(err)
		}
		return answer.Count
	}
	for range 2 { // the second call finds nothing to remove
		if err := s.Forget(ctx); err != nil {
			t.Fatal(err)
		}
		if left(s) != 0 || left(other) != 1 {
			t.Errorf("%d of the job and %d of another are left", left(s), left(other))
		}
	}
	if err := other.Forget(ctx); err != nil || left(other) != 0 {
		t.Errorf("%d of the other are left: %v", left(other), err)
	}
}
