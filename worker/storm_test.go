package worker

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rondo/cluster"
	"rondo/job"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	stormWorkers = 64
	stormHosts   = 32
	// stormPatience bounds a wait for a step, in simulated time.
	stormPatience = 2 * time.Minute
)

// TestSimulatedStorm is a job of 64 workers on 32 hosts, two of which are lost at once in each
// round, with the leader in every second one. It prints the simulated time to the next step, in
// which the network and the computing take none: what remains are the waits of the protocol.
//
//	RONDO_TEST_LONG=1 go test -v -run SimulatedStorm ./worker
func TestSimulatedStorm(t *testing.T) {
	if os.Getenv("RONDO_TEST_LONG") == "" {
		t.Skip("it takes minutes: `make storm` runs it, or RONDO_TEST_LONG=1")
	}
	const rounds = 40
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	data, err := job.OpenData(t.Context(), stormSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = data.Close() }()
	folder, took := t.TempDir(), map[bool][]time.Duration{}
	synctest.Test(t, func(t *testing.T) {
		spec := stormSpec()
		spec.AuditDir = folder
		w := storm{newWorld(spec, data, 64)}
		defer w.close(t)
		w.submit(t)
		for number := range 3 {
			w.startCoordinator(number + 1)
		}
		for n := range stormWorkers {
			w.startWorkerOn(fmt.Sprintf("host-%d", n%stormHosts))
		}
		for round := range rounds {
			leader := round%2 == 1
			took[leader] = append(took[leader], w.loseTwoHosts(t, leader))
		}
		w.stop(t)
		w.finish(t)
		if report := prove(t, w.world); report.Repeated > int64(rounds) {
			t.Errorf("%d steps were begun again in %d rounds", report.Repeated, rounds)
		}
		for _, promise := range w.broken {
			t.Error(promise)
		}
	})
	for _, leader := range []bool{false, true} {
		all := took[leader]
		slices.Sort(all)
		t.Logf("%d rounds, with the leader: %t: simulated time to the next step: p50 %v, p99 %v",
			len(all), leader, all[(len(all)-1)/2], all[(99*len(all)+99)/100-1])
	}
}

// storm is a world whose workers have come, and of which some are lost.
type storm struct{ *world }

// stormSpec is the simulation's job on 64 workers, with sums that do not depend on their number.
func stormSpec() *rondov1.JobSpec {
	spec := simSpec()
	spec.Workers, spec.MinWorkers, spec.MaxWorkers = stormWorkers, 2, stormWorkers
	spec.Batch, spec.MaxTokens, spec.Steps = stormWorkers, 1200*stormWorkers/6, 1<<40
	spec.Reduce, spec.LaneGroups, spec.Copies = "canonical", stormWorkers, 2
	return spec
}

// loseTwoHosts returns the time from the loss of two hosts to the next step.
func (w storm) loseTwoHosts(t *testing.T, leader bool) time.Duration {
	w.untilStep(t, "of all workers", func(world int, _ int64) bool { return world == stormWorkers })
	began := time.Now()
	_, before := w.newest()
	if leader {
		w.crashLeader(t)
	}
	var lost []string
	for _, number := range w.random.Perm(stormHosts)[:2] {
		lost = append(lost, fmt.Sprintf("host-%d", number))
	}
	for _, name := range w.alive() {
		if slices.Contains(lost, w.hostOf(name)) {
			w.crash(name)
		}
	}
	w.untilStep(t, fmt.Sprintf("without %v", lost), func(world int, step int64) bool {
		return world < stormWorkers && step > before
	})
	took := time.Since(began)
	for _, host := range lost {
		for range stormWorkers / stormHosts {
			w.startWorkerOn(host)
		}
	}
	return took
}

// close ends all processes, and shows what happened in a test that failed. Without it a test that
// gives up would never end: its processes would go on for ever in simulated time.
func (w storm) close(t *testing.T) {
	w.crashAll()
	if t.Failed() {
		w.show(t)
	}
}

func (w storm) hostOf(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.workers[name].member.Host
}

// crashLeader kills the coordinator that leads, and starts another.
func (w storm) crashLeader(t *testing.T) {
	leader, err := w.store.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.note("FAULT %s is killed", leader.ID)
	w.store.Cut(leader.ID, true)
	w.mu.Lock()
	c, next := w.coordinators[leader.ID], len(w.coordinators)+1
	c.gone = true
	w.mu.Unlock()
	c.kill()
	w.startCoordinator(next)
}

// newest returns the workers of the ring that has done the highest step, and that step.
func (w storm) newest() (world int, step int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rings[w.furthest]), w.highest
}

// untilStep waits for a step of which holds is true.
func (w storm) untilStep(t *testing.T, what string, holds func(world int, step int64) bool) {
	const pause = 5 * time.Millisecond
	for limit := time.Now().Add(stormPatience); !holds(w.newest()); time.Sleep(pause) {
		if time.Now().After(limit) {
			world, step := w.newest()
			t.Fatalf("no step %s within %v; step %d is that of %d workers", what, stormPatience,
				step, world)
		}
	}
}

// stop has the job stop at a step's end.
func (w storm) stop(t *testing.T) {
	leader, err := w.store.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	c := w.coordinators[leader.ID]
	w.mu.Unlock()
	select {
	case c.events <- cluster.StopRequested{Reason: "the storm is over"}:
	case <-time.After(stormPatience):
		t.Fatal("the leader takes no request")
	}
}
