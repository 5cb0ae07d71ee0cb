package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"rondo/compute"
	"rondo/sum"

	"golang.org/x/sync/errgroup"

	"rondo/allreduce"
	"rondo/compute/cpu"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// TestCanonicalOverTheRing: the weights after 50 steps have the same SHA-256 for any number of
// workers in the ring, with one thread each or two.
func TestCanonicalOverTheRing(t *testing.T) {
	spec := jobspec.Textbook()
	spec.MaxTokens, spec.Hidden, spec.Batch, spec.Bptt = 20000, 20, 16, 9
	spec.Steps, spec.Epochs, spec.Reduce, spec.Optimizer, spec.Lr = 50, 0, "canonical", "adam", 0.01
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	data, err := job.OpenData(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	for _, scope := range []string{"global", "group"} {
		for _, each := range []int64{1, 2} {
			spec.ClipScope, spec.Clip, spec.Accumulate = scope, 0.1, each
			if err := jobspec.Validate(spec); err != nil {
				t.Fatal(err)
			}
			want := canonicalWeights(t, spec, data, 1, 1)
			for _, workers := range []int{1, 2, 3, 4, 8} {
				threads := 1 + workers%2
				if got := canonicalWeights(t, spec, data, workers, threads); got != want {
					t.Errorf("--clip-scope %s --accumulate %d, %d workers of %d threads: %s, "+
						"want %s", scope, each, workers, threads, got, want)
				}
			}
		}
	}
}

// canonicalWeights trains a job on workers that are connected in memory. It returns the SHA-256 of
// the weights, which must be equal on all.
func canonicalWeights(
	t *testing.T, spec *rondov1.JobSpec, data job.Data, workers, threads int,
) string {
	t.Helper()
	links := make([]allreduce.Links, workers)
	peer := func(rank int) allreduce.Peer {
		return allreduce.Peer{Rank: allreduce.Rank(rank), Address: fmt.Sprint("worker ", rank)}
	}
	for rank := range workers {
		if workers == 1 {
			break // a ring of one has no links
		}
		next := (rank + 1) % workers
		links[rank].Successor, links[next].Predecessor = allreduce.Pipe(peer(rank), peer(next))
	}
	digests := make([]string, workers)
	group, ctx := errgroup.WithContext(t.Context())
	for rank := range workers {
		group.Go(func() (err error) {
			digests[rank], err = canonicalRank(ctx, spec, data, links[rank], rank, workers, threads)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for rank, digest := range digests {
		if digest != digests[0] {
			t.Fatalf("rank %d of %d has other weights than rank 0", rank, workers)
		}
	}
	return digests[0]
}

// canonicalRank runs one worker.
func canonicalRank(
	ctx context.Context, spec *rondov1.JobSpec, data job.Data, links allreduce.Links,
	rank, workers, threads int,
) (digest string, err error) {
	device, err := cpu.New(cpu.Config{Threads: threads})
	if err != nil {
		return "", err
	}
	defer device.Close()
	settings, err := job.TrainConfig(spec, data)
	if err != nil {
		return "", err
	}
	settings.HostMemory = true
	task, err := data.NewTask(device, train.Tail, nil)
	if err != nil {
		return "", err
	}
	defer task.Close()
	trainer, err := train.New(task, settings)
	if err != nil {
		return "", err
	}
	defer trainer.Close()
	const patience = time.Minute
	// Odd chunk sizes split the tree's nodes anywhere.
	ring, err := allreduce.New(allreduce.Config{Rank: allreduce.Rank(rank), World: workers,
		Generation: 1, ChunkBytes: 4 * (1 + rand.New(rand.NewPCG(1, uint64(workers))).IntN(3000)),
		ChunkTimeout: patience, StepTimeout: 2 * patience}, links)
	if err != nil {
		return "", err
	}
	defer func() { _ = ring.Close() }()
	at := train.Ring{Rank: rank, Generation: 1}
	if workers > 1 {
		around := sum.Of(ring)
		at.Peers = around
		at.NewSum = func(
			g *compute.Mirror, finishes []int, nodes func() [][]float32,
		) (train.Sum, error) {
			ends, err := sum.Leaves(at.LaneEnds, int(spec.Batch)/int(jobspec.LaneGroups(spec)))
			if err != nil {
				return nil, err
			}
			return sum.NewTree(sum.Config{Gradient: g, Finishes: finishes, Ranks: workers,
				Now: time.Now}, around, ends, nodes), nil
		}
	}
	groups := int(jobspec.LaneGroups(spec))
	for r := range workers {
		at.LaneEnds = append(at.LaneEnds, groups*(r+1)/workers*(int(spec.Batch)/groups))
	}
	if _, err := trainer.Join(ctx, at, nil); err != nil {
		return "", err
	}
	if _, err := trainer.Run(ctx); err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, v := range task.Params() {
		fmt.Fprintf(hash, "%b ", v)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
