package worker

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"rondo/audit"
	"rondo/checkpoint"
	"rondo/cluster"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

var (
	simSeed  = flag.Uint64("seed", 0, "replay this one simulation")
	simSeeds = flag.Uint64("seeds", 200, "how many simulations to run")
	simFault = flag.Duration("fault", 5*time.Second, "how long a fault lasts at most")
)

// simSeedsShort is the number of simulations with -short.
const simSeedsShort = 60

func TestMain(m *testing.M) {
	// With the race detector, Go 1.26's runtime crashes when two Ps start timers of one bubble that
	// are due at the same time.
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// TestSimulation runs whole jobs under a simulated clock: coordinators, workers that really train,
// the ring and the store. A seed determines a job and a schedule of crashes, pauses, cuts and
// outages. The job must end, each segment must count once, and the loss must equal that of the
// undisturbed job. Go's scheduler, maps and select are not determined by the seed: `make replay
// SEED=1449` compiles the test for WebAssembly, where they are (see internal/replay).
func TestSimulation(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	data, err := job.OpenData(t.Context(), simSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	want := undisturbed(t, data, simSpec())
	spec := simSpec()
	share(spec, 1)
	shared := undisturbed(t, data, spec)
	first, last := uint64(1), *simSeeds
	switch {
	case *simSeed != 0:
		first, last = *simSeed, *simSeed
	case testing.Short():
		last = min(last, simSeedsShort)
	}
	faults := 0
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			faults += simulate(t, data, seed, want, shared)
		})
		if t.Failed() && *simSeed == 0 {
			t.Fatalf("run it again with: go test -run Simulation ./worker -seed %d; a history "+
				"that is always the same has: make replay SEED=%d FAULT=%v", seed, seed, *simFault)
		}
	}
	t.Logf("%d faults in %d simulations", faults, last-first+1)
}

// simSpec is a small job whose loss does not depend on the workers.
func simSpec() *rondov1.JobSpec {
	spec := jobspec.Textbook()
	spec.MaxTokens, spec.Hidden, spec.Batch, spec.Bptt = 1200, 4, 6, 4
	spec.Steps, spec.Epochs, spec.SampleTokens, spec.ClipScope = 60, 0, 0, "global"
	spec.Workers, spec.CheckEvery, spec.Cell = 3, 10, "gru"
	for to, d := range map[**durationpb.Duration]time.Duration{
		&spec.ChunkTimeout: time.Second, &spec.LeaseTtl: 2 * time.Second,
		&spec.StepTimeout: 4 * time.Second, &spec.RegroupTimeout: 8 * time.Second,
		&spec.JoinTimeout: 10 * time.Second, &spec.PauseTimeout: 10 * time.Minute,
	} {
		*to = durationpb.New(d)
	}
	// Computing takes no simulated time, so the delay gives steps a duration.
	spec.Inject = "delay rank=* phase=load for=100ms times=0"
	return spec
}

// share shards the optimizer's state among the workers.
func share(spec *rondov1.JobSpec, copies int64) {
	spec.Optimizer, spec.Momentum = "momentum", 0.5
	spec.ShardOptimizer, spec.ShardCopies = true, copies
}

// undisturbed returns the loss after each step of the job on one worker.
func undisturbed(
	t *testing.T, data job.Data, spec *rondov1.JobSpec,
) (losses map[int64]float64) {
	synctest.Test(t, func(t *testing.T) {
		spec.Workers = 1
		w := newWorld(spec, data, 0)
		w.submit(t)
		w.startCoordinator(1)
		w.startWorker()
		w.finish(t)
		losses = w.losses
	})
	return losses
}

// simulate runs one seed and returns its number of faults. The loss must equal want, or shared if
// the optimizer is sharded.
func simulate(
	t *testing.T, data job.Data, seed uint64, want, shared map[int64]float64,
) (faults int) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		spec := simSpec()
		w := newWorld(spec, data, seed)
		defer func() {
			if t.Failed() && *simSeed == 0 {
				w.show(t)
			}
		}()
		spec.AuditDir = folder + "/audit"
		spec.Workers = int64(1 + w.random.IntN(4))
		spec.MinWorkers = 1 + w.random.Int64N(spec.Workers)
		spec.MaxWorkers = spec.Workers + w.random.Int64N(3)
		spec.Inject += w.orders()
		if w.random.IntN(3) == 0 || strings.Contains(spec.Inject, "corrupt") {
			spec.CheckpointDir, spec.CheckpointEvery = folder+"/run", 15
		}
		if seed%3 == 0 { // rounds, whose loss depends on the set of workers
			spec.SyncEvery, spec.ClipScope, w.inexact = 2+w.random.Int64N(7), "worker", true
			spec.OuterOptimizer, spec.OuterMomentum = "nesterov", 0.3
		}
		if seed%3 == 1 {
			share(spec, 1+w.random.Int64N(2))
			want = shared
		}
		spec.Submitted = int64(seed)
		w.submit(t)
		for i := range 1 + w.random.IntN(2) {
			w.startCoordinator(i + 1)
		}
		for range spec.Workers {
			w.startWorker()
		}
		faults = w.disturb()
		w.finish(t)
		w.check(t, want)
	})
	return faults
}

// orders returns random rehearsal rules.
func (w *world) orders() (rules string) {
	verbs := []string{"nan", "corrupt", "delay for=7s phase=forward", "drop", "duplicate",
		"delay for=7s phase=all-gather", "corrupt phase=all-gather"}
	if w.spec.Workers == 1 {
		verbs = verbs[:1] // the others need another worker to notice them
	}
	for range w.random.IntN(3) {
		verb, rank := verbs[w.random.IntN(len(verbs))], w.random.Int64N(w.spec.Workers)
		rules += fmt.Sprintf("; %s rank=%d step=%d", verb, rank, 1+w.random.Int64N(w.spec.Steps))
		if verb == "nan" || strings.HasPrefix(verb, "corrupt") {
			w.inexact = true // a step is skipped, or computed with wrong parameters
		}
	}
	return rules
}

func (w *world) submit(t *testing.T) {
	text, err := proto.Marshal(w.spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.store.PutSpec(t.Context(), text); err != nil {
		t.Fatal(err)
	}
}

// disturb causes random faults for a while.
func (w *world) disturb() (faults int) {
	for range 3 + w.random.IntN(8) {
		time.Sleep(time.Duration(w.random.Int64N(int64(1500 * time.Millisecond))))
		if w.isOver() {
			break
		}
		faults++
		w.fault()
	}
	return faults
}

func (w *world) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended.Phase == cluster.Ended
}

// fault causes one fault.
func (w *world) fault() {
	workers := w.alive()
	for_ := time.Duration(w.random.Int64N(int64(*simFault)))
	pick := func() string {
		if len(workers) == 0 {
			return ""
		}
		return workers[w.random.IntN(len(workers))]
	}
	switch n := w.random.IntN(14); {
	case n < 3 && len(workers) > 0:
		w.crash(pick())
		w.startWorker()
	case n == 3 && len(workers) > 1: // two at once, neighbours or not
		for range 2 {
			if name := pick(); slices.Contains(w.alive(), name) {
				w.crash(name)
				w.startWorker()
			}
		}
	case n == 4 && len(workers) > 0:
		name := pick()
		w.strike("%s is asked to leave", name)
		w.mu.Lock()
		kill := w.workers[name].kill
		w.mu.Unlock()
		kill()
		w.startWorker()
	case n == 5:
		w.startWorker()
	case n == 6:
		w.crashCoordinator()
	case n == 7 && len(workers) > 0:
		name := pick()
		w.strike("%s does not reach the store for %v", name, for_)
		w.store.Cut(name, true)
		w.later(for_, func() { w.store.Cut(name, false) })
	case n == 8:
		w.note("FAULT the store is away for %v", for_)
		for _, name := range workers {
			w.strike("and so from %s", name)
		}
		w.store.Outage(true)
		w.later(for_, func() { w.store.Outage(false) })
	case n == 13:
		w.note("FAULT the store will go back to this moment in %v", for_)
		view, err := w.store.View(context.Background())
		if emptied := w.random.IntN(2) == 0; err == nil {
			w.later(for_, func() {
				w.note("the store goes back to generation %d, emptied: %t", view.Plan.Generation,
					emptied)
				w.store.GoBack(view.Plan, emptied)
			})
		}
	case n == 10 && len(workers) > 0:
		w.pause(pick(), for_)
	case n == 11:
		w.pauseCoordinator(for_)
	case n == 12 && len(workers) > 1:
		from, to := pick(), pick()
		late := time.Duration(w.random.Int64N(int64(800 * time.Millisecond)))
		w.strike("%s hears from %s later by %v for %v", to, from, late, for_)
		w.strike("and so for %s", from)
		w.net.Delay(from, to, late)
		w.later(for_, func() { w.net.Delay(from, to, 0) })
	case n == 9 && len(workers) > 1:
		from, to, both := pick(), pick(), w.random.IntN(2) == 0
		if from == to {
			return
		}
		w.strike("%s gets nothing from %s for %v, both ways: %t", to, from, for_, both)
		w.strike("and so for %s", from)
		w.cut(from, to, both, true)
		w.later(for_, func() { w.cut(from, to, both, false) })
	}
}

// pause halts a worker for a while. For other processes it is like SIGSTOP.
func (w *world) pause(name string, d time.Duration) {
	w.strike("%s stands still for %v", name, d)
	others := func(act func(from, to string)) {
		for _, other := range w.alive() {
			act(name, other)
			act(other, name)
		}
	}
	w.store.Cut(name, true)
	others(w.net.Cut)
	w.later(d, func() {
		others(w.net.Heal)
		w.store.Cut(name, false)
	})
}

// pauseCoordinator halts a coordinator for a while, which may be longer than its lease.
func (w *world) pauseCoordinator(d time.Duration) {
	id := ""
	w.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(w.coordinators)) {
		if !w.coordinators[name].gone {
			id = name
		}
	}
	w.mu.Unlock()
	if id == "" {
		return
	}
	w.note("FAULT %s stands still for %v", id, d)
	w.store.Cut(id, true)
	w.later(d, func() { w.store.Cut(id, false) })
}

// cut cuts or heals the connection from one worker to another; both: in both directions.
func (w *world) cut(from, to string, both, cut bool) {
	act := w.net.Heal
	if cut {
		act = w.net.Cut
	}
	act(from, to)
	if both {
		act(to, from)
	}
}

// strike records a fault of a worker.
func (w *world) strike(format, name string, args ...any) {
	w.note("FAULT "+format, append([]any{name}, args...)...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hit[name] = true
}

// later calls do after a time, even if the job has ended.
func (w *world) later(d time.Duration, do func()) {
	w.processes.Go(func() {
		time.Sleep(d)
		do()
	})
}

func (w *world) alive() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, p := range w.workers {
		if !p.gone {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// crash kills a worker. For other processes it is like kill -9: the worker is cut off for ever.
func (w *world) crash(name string) {
	w.strike("%s is killed", name)
	w.mu.Lock()
	p := w.workers[name]
	p.gone = true
	w.mu.Unlock()
	w.store.Cut(name, true)
	w.net.Crash(name)
	p.kill()
}

// crashCoordinator kills a coordinator and starts another.
func (w *world) crashCoordinator() {
	w.mu.Lock()
	var ids []string
	for id, c := range w.coordinators {
		if !c.gone {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	next := len(w.coordinators) + 1
	w.mu.Unlock()
	if len(ids) > 0 {
		id := ids[w.random.IntN(len(ids))]
		w.note("FAULT %s is killed", id)
		w.store.Cut(id, true)
		w.mu.Lock()
		w.coordinators[id].gone = true
		w.coordinators[id].kill()
		w.mu.Unlock()
	}
	w.startCoordinator(next)
}

// finish lets the job and all processes end.
func (w *world) finish(t *testing.T) {
	limit := time.Now().Add(10 * time.Minute)
	for !w.isOver() && time.Now().Before(limit) {
		time.Sleep(100 * time.Millisecond)
		if len(w.alive()) < int(w.spec.MinWorkers) {
			w.startWorker() // as the job's operator would
		}
	}
	if !w.isOver() {
		view, err := w.store.View(context.Background())
		t.Errorf("the job has not ended: %+v, %v", view, err)
	} else if w.ended.Failed && !w.unrecoverable() {
		t.Errorf("the job failed: %s", w.ended.Reason)
	}
	w.mu.Lock()
	for _, c := range w.coordinators {
		c.kill()
	}
	for _, p := range w.workers {
		p.kill()
	}
	w.mu.Unlock()
	w.processes.Wait()
}

// unrecoverable reports whether the job failed rightly: half of the ranks were corrupted, and there
// was no checkpoint yet, or all made NaN.
func (w *world) unrecoverable() bool {
	return strings.Contains(w.spec.Inject, "nan rank=*") &&
		strings.Contains(w.ended.Reason, "--nonfinite-limit") ||
		strings.Contains(w.spec.Inject, "corrupt") &&
			strings.Contains(w.ended.Reason, "there is no checkpoint to go back to")
}

// states lists the job's checkpoints for the audit.
func (w *world) states(t *testing.T) (states []audit.State) {
	if w.spec.CheckpointDir == "" {
		return nil
	}
	store, err := checkpoint.Open(t.Context(), w.spec.CheckpointDir, checkpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	steps, err := store.Steps(t.Context())
	for _, step := range steps {
		if saved, err := store.Load(t.Context(), step); err != nil {
			t.Error(err)
		} else {
			states = append(states, audit.State{Step: step, Digest: saved.Digest, Path: saved.Path})
		}
	}
	if err != nil {
		t.Error(err)
	}
	return states
}

// prove checks the job's logs, and returns what they prove.
func prove(t *testing.T, w *world) *audit.Report {
	report, err := audit.Prove(t.Context(), os.DirFS(w.spec.AuditDir), nil, w.states(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range report.Findings {
		// The others compute with a corrupt worker until they find it.
		corrupt := strings.Contains(w.spec.Inject, "corrupt")
		if !corrupt || !strings.Contains(finding, "parameters") {
			t.Errorf("the audit: %s", finding)
		}
	}
	return report
}

// check checks the job's logs and losses.
func (w *world) check(t *testing.T, want map[int64]float64) {
	prove(t, w)
	if w.ended.Failed {
		return
	}
	for _, promise := range w.broken {
		t.Error(promise)
	}
	if w.highest != w.spec.Steps {
		t.Errorf("%d steps were done, not %d", w.highest, w.spec.Steps)
	}
	got, all := w.losses[w.highest], want[w.spec.Steps]
	if !w.inexact && !(math.Abs(got-all) < 1e-4*math.Abs(all)) {
		t.Errorf("the loss ends at %v; without faults at %v", got, all)
	}
}
