//go:build !wasm

package worker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"rondo/checkpoint"
	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/local"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/worker"
)

// jobTimeout bounds one job.
const jobTimeout = 2 * time.Minute

// run runs a whole job in this process. It returns the events and each worker's result.
func run(t *testing.T, spec *rondov1.JobSpec) (events []*rondov1.Event, errs []error) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
	defer cancel()
	etcd, err := local.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	where := meet.Config{Etcd: []string{etcd.Endpoint()}, Job: spec.Job}
	store, err := where.Store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	text, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, created, err := store.PutSpec(ctx, text); err != nil || !created {
		t.Fatalf("created %t, %v", created, err)
	}
	results := make(chan error, spec.Workers)
	for range spec.Workers {
		go func() {
			_, err := worker.Run(ctx, worker.Config{Config: where, Allow: allowed(spec)})
			results <- err
		}()
	}
	led := make(chan error, 1)
	go func() {
		_, err := coordinator.Run(ctx, coordinator.Config{Config: where})
		led <- err
	}()
	client, err := where.Client(store, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Watch(ctx, func(e *rondov1.Event) error {
		events = append(events, e)
		return nil
	}); err != nil {
		t.Error(err)
	}
	errs = append(errs, <-led)
	for range spec.Workers {
		errs = append(errs, <-results)
	}
	return events, errs
}

// allowed is what a worker of a spec may open.
func allowed(spec *rondov1.JobSpec) jobspec.Allow {
	return jobspec.Allow{Paths: []string{spec.Corpus, spec.CheckpointDir},
		Inject: spec.Inject != ""}
}

func small() *rondov1.JobSpec {
	spec := jobspec.Textbook()
	spec.MaxTokens, spec.Hidden, spec.Batch, spec.Bptt = 5000, 8, 6, 5
	spec.Steps, spec.SampleTokens, spec.Workers = 10, 10, 3
	return spec
}

// TestAJobLeavesNothingBehind: no goroutine of a worker or a coordinator outlives its job.
func TestAJobLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	spec := small()
	spec.CheckpointDir, spec.CheckpointEvery = t.TempDir()+"/run", 4
	events, errs := run(t, spec)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	steps, last := 0, events[len(events)-1]
	for _, e := range events {
		if e.GetStep() != nil {
			steps++
		}
	}
	if steps != 10 || last.GetDone().GetStep() != 10 {
		t.Errorf("%d steps, last event %v", steps, last)
	}
	store, saved, err := checkpoint.Resolve(t.Context(), spec.CheckpointDir, checkpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if digest, _, err := job.SavedDigest(t.Context(), saved); err != nil || digest != saved.Digest {
		t.Errorf("the parameters have digest %x, the manifest %x, %v", digest, saved.Digest, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}

// TestAnotherPrecision: a job in bf16 ends with the same parameters on all workers, as their roll
// calls check. Training goes on from its checkpoint in float32, with a notice.
func TestAnotherPrecision(t *testing.T) {
	spec := small()
	spec.CheckpointDir, spec.CheckpointEvery, spec.CheckEvery = t.TempDir()+"/run", 4, 1
	spec.Precision, spec.Layers, spec.Dropout, spec.Recompute = "bf16", 2, 0.2, 2
	spec.Seed = 0 // not the default
	events, errs := run(t, spec)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	devices := 0
	for _, e := range events {
		if w := e.GetWorker(); w != nil && strings.Contains(w.Device, "bf16") {
			devices++
		}
	}
	if got := events[len(events)-1].GetDone().GetStep(); got != 10 || devices != 3 {
		t.Errorf("%d steps on %d devices for bf16", got, devices)
	}
	spec.Precision, spec.Recompute, spec.Steps = "fp32", 0, 15
	events, errs = run(t, spec)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	notices := 0
	for _, e := range events {
		const want = "the checkpoint of step 10 was trained in bf16, and is trained on in fp32"
		if n := e.GetNotice(); n.GetText() == want && n.GetId() == "" {
			notices++
		}
	}
	if got := events[len(events)-1].GetDone().GetStep(); got != 15 || notices != 1 {
		t.Errorf("%d steps, and the precision was reported %d times", got, notices)
	}
}

// TestAFailureIsTheWorkersOwn: all workers get the first failure's reason, and nothing is left
// behind.
func TestAFailureIsTheWorkersOwn(t *testing.T) {
	before := goleak.IgnoreCurrent()
	spec := small()
	spec.Lr, spec.Clip, spec.NonfiniteLimit, spec.Steps = 1e30, 0, 3, 1000
	events, errs := run(t, spec)
	const want = "was not finite in 3 steps in a row"
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	last := events[len(events)-1].GetFailure()
	if last == nil || last.Usage || !strings.Contains(last.Text, want) {
		t.Errorf("last event %v", events[len(events)-1])
	}
	goleak.VerifyNone(t, before)
}

// TestWrongInputIsTold: a worker whose corpus is missing reports that to the coordinator.
func TestWrongInputIsTold(t *testing.T) {
	spec := small()
	spec.Corpus = "/nowhere/book.txt"
	events, errs := run(t, spec)
	last := events[len(events)-1].GetFailure()
	if last == nil || !last.Usage || !strings.Contains(last.Text, "/nowhere/book.txt") {
		t.Errorf("last event %v, results %v", events[len(events)-1], errs)
	}
}

// TestStrangersSpec: a worker reads no byte of a file that a stranger's spec names, and tells the
// person who started it why.
func TestStrangersSpec(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), jobTimeout)
	defer cancel()
	etcd, err := local.StartEtcd(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	secret := filepath.Join(t.TempDir(), ".aws", "credentials")
	if err := os.MkdirAll(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG\n", 100)
	if err := os.WriteFile(secret, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := small()
	spec.Corpus, spec.Tokenizer, spec.Workers = secret, "word", 1
	where := meet.Config{Etcd: []string{etcd.Endpoint()}, Job: spec.Job}
	store, err := where.Store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	text, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.PutSpec(ctx, text); err != nil {
		t.Fatal(err)
	}
	// The stranger leads the job, so that a worker which obeys would train.
	leading, stop := context.WithCancel(ctx)
	led := make(chan error, 1)
	go func() {
		_, err := coordinator.Run(leading, coordinator.Config{Config: where})
		led <- err
	}()
	_, err = worker.Run(ctx, worker.Config{Config: where})
	stop()
	<-led
	if err == nil || !strings.Contains(err.Error(), "--corpus") ||
		!strings.Contains(err.Error(), "--allow-path") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the worker obeyed: %v", err)
	}
	cached, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "*", "*"))
	if err != nil || len(cached) > 0 {
		t.Errorf("it read the file: %v, %v", cached, err)
	}
}
