package memstore_test

import (
	"testing"

	"go.uber.org/goleak"

	"rondo/cluster/memstore"
	"rondo/cluster/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Job {
		store := memstore.New()
		return storetest.Job{
			Open: func(*testing.T) storetest.Store { return store },
			Await: func(t *testing.T, id string) {
				if err := store.Await(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			},
			Expire: func(_ *testing.T, id string) { store.Expire(id) },
		}
	})
}
