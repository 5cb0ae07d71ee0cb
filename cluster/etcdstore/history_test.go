package etcdstore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"rondo/cluster"
)

// TestEtcdLosesWrites: etcd is restored from a backup, and then emptied. Watches go on, and the
// leader campaigns again instead of waiting for revisions of the future.
func TestEtcdLosesWrites(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	data, backup := t.TempDir(), t.TempDir()
	client, peer := reservedURL(t), reservedURL(t)
	server := etcdAt(t, data, client, peer)
	defer func() { server.Close() }()
	s, err := Open(ctx, Config{Endpoints: []string{client.Host}, Job: "j",
		RequestTimeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := s.PutSpec(ctx, []byte("spec")); err != nil {
		t.Fatal(err)
	}
	leader, err := s.Campaign(ctx, cluster.Leader{ID: "c1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	plans := watchPlans(ctx, t, s)
	put := func(g cluster.Generation) {
		t.Helper()
		plan := cluster.Plan{Generation: g, Phase: cluster.Paused, Reason: "as the test has it"}
		if err := loadAndPut(ctx, leader, plan); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	plans.await(ctx, t, 1)
	server.Close()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	server = etcdAt(t, data, client, peer)
	put(2)
	put(3)
	plans.await(ctx, t, 3)
	if s.Losses() != 0 {
		t.Error("a restart counts as a loss of writes")
	}

	members := make(chan error, 1)
	go func() { members <- leader.WatchMembers(ctx, func([]cluster.Member) error { return nil }) }()
	server.Close()
	server = etcdAt(t, backup, client, peer)
	plans.awaitOlder(ctx, t, 1)
	if err := <-members; !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("WatchMembers: %v, want %v", err, cluster.ErrDeposed)
	}
	if err := leader.PutPlan(ctx, cluster.Plan{}); !errors.Is(err, cluster.ErrDeposed) {
		t.Errorf("PutPlan: %v, want %v", err, cluster.ErrDeposed)
	}
	if err := leader.Resign(ctx); err != nil {
		t.Error(err)
	}
	if leader, err = s.Campaign(ctx, cluster.Leader{ID: "c2"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	put(2)
	plans.await(ctx, t, 2)

	server.Close()
	server = etcdAt(t, t.TempDir(), client, peer)
	plans.awaitOlder(ctx, t, 0)
	if err := leader.Resign(ctx); err != nil {
		t.Error(err)
	}
	if _, err := s.Spec(ctx); s.Losses() != 2 || !errors.Is(err, cluster.ErrNoSpec) {
		t.Errorf("%d losses; the spec: %v", s.Losses(), err)
	}
}
