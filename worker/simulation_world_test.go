package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/memnet"
	"rondo/cluster"
	"rondo/cluster/coordinator"
	"rondo/cluster/memstore"
	"rondo/cluster/rpc"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Times in the simulated world.
const (
	simPoll  = 10 * time.Millisecond // interval in which a reporter looks for its leader
	simTaken = time.Second           // limit for a leader to accept an event
)

// world is a whole job in one process: its store, coordinators and workers, and the networks
// between them. All of them can fail.
type world struct {
	journal
	spec   *rondov1.JobSpec
	data   job.Data
	random *rand.Rand
	store  *memstore.Store
	net    *memnet.Network

	processes sync.WaitGroup
	results   chan error   // of the coordinators that saw the job's end
	ended     cluster.Plan // the job's end

	mu           sync.Mutex
	coordinators map[string]*simCoordinator
	workers      map[string]*simWorker
	spawned      int
	losses       map[int64]float64 // by step, as last reported
	highest      int64
	inexact      bool                // the losses may differ from the undisturbed job's
	backwards    bool                // a return to an earlier step was announced
	rings        map[uint64][]string // processes of each generation
	furthest     uint64              // generation of the highest step
	hit          map[string]bool     // processes that a fault has hit
	veterans     map[string]bool     // processes that have a state
	broken       []string            // violated promises
	onStep       func()              // called at each reported step; nil: not
}

// simWorker is a worker process.
type simWorker struct {
	*worker
	kill context.CancelFunc
	gone bool // killed, or left
}

// simCoordinator is a coordinator process with the interface that reporters use.
type simCoordinator struct {
	world  *world
	id     string
	events chan cluster.Event
	kill   context.CancelFunc
	gone   bool
	terms  int // number of its terms as leader
}

func newWorld(spec *rondov1.JobSpec, data job.Data, seed uint64) *world {
	return &world{spec: spec, data: data, random: rand.New(rand.NewPCG(seed, 0)),
		store: memstore.New(), net: memnet.New(), results: make(chan error, 64),
		coordinators: map[string]*simCoordinator{}, workers: map[string]*simWorker{},
		losses: map[int64]float64{}, veterans: map[string]bool{},
		rings: map[uint64][]string{}, hit: map[string]bool{}}
}

// journal is what happened in a world, in order.
type journal struct {
	mu  sync.Mutex
	log []string
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	line := time.Now().Format("04:05.000 ") + fmt.Sprintf(format, args...)
	if j.log = append(j.log, line); *simSeed != 0 {
		fmt.Fprintln(os.Stderr, line) // at once, so that it is seen if a simulation never ends
	}
}

// show logs everything noted so far.
func (j *journal) show(t *testing.T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.log {
		t.Log(line)
	}
}

// Write implements io.Writer for the processes' logs.
func (j *journal) Write(p []byte) (int, error) {
	if line := string(p[:max(len(p)-1, 0)]); !strings.Contains(line, "rehearsal: delay") {
		j.note("%s", line) // without the delays that pace the steps
	}
	return len(p), nil
}

func (j *journal) logger(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})).With("at", name)
}

// startWorker starts a worker on one of two hosts.
func (w *world) startWorker() string {
	w.mu.Lock()
	host := fmt.Sprintf("host-%d", (w.spawned+1)%2)
	w.mu.Unlock()
	return w.startWorkerOn(host)
}

// lost returns the error of a neighbour that a worker does not reach; nil: it reaches both.
func lost(net *memnet.Network, name string, seat grpclink.Seat, addresses []string) error {
	for _, place := range []int{int(seat.Rank) + 1, int(seat.Rank) + seat.World - 1} {
		peer := allreduce.Peer{Rank: allreduce.Rank(place % seat.World)}
		peer.Address = addresses[peer.Rank]
		if seat.Ranks != nil {
			peer.Rank = seat.Ranks[peer.Rank]
		}
		if !net.Reaches(name, peer.Address) {
			return &allreduce.PeerError{Peer: peer, Err: grpclink.ErrUnreachable}
		}
	}
	return nil
}

func (w *world) startWorkerOn(host string) string {
	w.mu.Lock()
	w.spawned++
	name := fmt.Sprintf("w%d", w.spawned)
	w.mu.Unlock()
	client := w.store.As(name)
	ctx, kill := context.WithCancel(context.Background())
	p := &simWorker{kill: kill, worker: &worker{reports: reports{log: w.logger(name)},
		spec: w.spec, data: w.data, name: name,
		member: cluster.Member{ID: name, Address: name, Host: host, PID: 1, Process: name,
			Version: "of this build", Identity: "the same"}}}
	p.registry, p.claim = client, client.Claim
	p.newReporter = func(id string) (reporter, error) { return w.newReporter(name, id), nil }
	p.connect = func(ctx context.Context, seat grpclink.Seat, addresses []string,
		silence time.Duration) (allreduce.Links, error) {
		ctx, end := context.WithTimeout(ctx, w.spec.StepTimeout.AsDuration())
		defer end()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(silence, func() {
			if err := lost(w.net, name, seat, addresses); err != nil {
				cancel(err)
			}
		}).Stop()
		links, err := w.net.Connect(ctx, name, memnet.Seat{Generation: seat.Generation,
			Rank: seat.Rank, World: seat.World, Circle: string(seat.Circle), Ranks: seat.Ranks},
			addresses)
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, grpclink.ErrUnreachable) {
			return allreduce.Links{}, cause
		}
		return links, err
	}
	p.reach = func(_ context.Context, address string) error {
		if !w.net.Reaches(name, address) {
			return errors.New("it is not reached")
		}
		return nil
	}
	w.mu.Lock()
	w.workers[name] = p
	w.mu.Unlock()
	w.note("%s starts", name)
	w.processes.Go(func() {
		err := p.beginReports(name)
		if err == nil {
			err = p.live(ctx)
			p.farewell(ctx, err)
		}
		w.mu.Lock()
		p.gone = true
		w.mu.Unlock()
		w.note("%s ends: %v", name, err)
	})
	return name
}

func (w *world) startCoordinator(number int) {
	id := fmt.Sprintf("c%d", number)
	ctx, kill := context.WithCancel(context.Background())
	c := &simCoordinator{world: w, id: id, events: make(chan cluster.Event), kill: kill}
	w.mu.Lock()
	w.coordinators[id] = c
	w.mu.Unlock()
	spec := w.spec
	w.note("%s starts", id)
	w.processes.Go(func() {
		plan, err := coordinator.Run(ctx, coordinator.Config{
			Job: cluster.Job{Workers: int(spec.Workers), MinWorkers: int(spec.MinWorkers),
				MaxWorkers: int(spec.MaxWorkers), Lanes: int(spec.Batch),
				Groups:       int(jobspec.LaneGroups(spec)),
				JoinTimeout:  spec.JoinTimeout.AsDuration(),
				PauseTimeout: spec.PauseTimeout.AsDuration(), Version: "of this build",
				Run: spec.Submitted},
			Self:     cluster.Leader{ID: id, Address: id},
			LeaseTTL: spec.LeaseTtl.AsDuration(),
			Election: w.store.As(id), Events: c.events, Audience: c, Log: w.logger(id),
			LostWrites: w.store.LostWrites})
		w.mu.Lock()
		c.gone = true
		if err == nil {
			w.ended = plan
		}
		w.mu.Unlock()
		w.note("%s ends: %v", id, err)
		w.results <- err
	})
}

// Lead implements coordinator.Audience. It begins another term.
func (c *simCoordinator) Lead() {
	c.world.note("%s leads", c.id)
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	c.terms++
}

// Follow implements coordinator.Audience.
func (c *simCoordinator) Follow() { c.world.note("%s does not lead any more", c.id) }

// Planned implements coordinator.Audience.
func (c *simCoordinator) Planned(p cluster.Plan) {
	c.world.hold(p)
	c.world.note("%s plans generation %d, %v, %d members: %s", c.id, p.Generation, p.Phase,
		len(p.Members), p.Reason)
}

// Notify implements coordinator.Audience.
func (c *simCoordinator) Notify(id, text string) { c.world.note("%s: %s: %s", c.id, id, text) }

// simReporter reports to the leader as rpc.Reporter does: in order, and everything again to a new
// leader.
type simReporter struct {
	world       *world
	process, id string
	mu          sync.Mutex
	records     []*rondov1.Record
	sent        int    // records sent to this leader
	leader      string // with its term
	closed      chan struct{}
	once        sync.Once
}

func (w *world) newReporter(process, id string) *simReporter {
	r := &simReporter{world: w, process: process, id: id, closed: make(chan struct{})}
	w.processes.Go(r.run)
	return r
}

// Report implements reporter.
func (r *simReporter) Report(_ context.Context, e *rondov1.Event) error {
	record := &rondov1.Record{Source: r.id, Event: e}
	if step := e.GetStep(); step != nil {
		r.world.stepped(step)
	}
	r.world.watch(r.process, e)
	if notice := e.GetNotice(); notice != nil {
		if !strings.HasPrefix(notice.Text, "rehearsal: delay") {
			r.world.note("%s says: %s", r.id, notice.Text)
		}
	}
	if rpc.ClusterEvent(record) == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, record)
	return nil
}

// watch records from an event which process has a state, and what was announced.
func (w *world) watch(process string, e *rondov1.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch text := e.GetNotice().GetText(); {
	case strings.Contains(text, "computed anew"):
		w.inexact, w.backwards = true, true
	case strings.Contains(text, "begins at zero again"):
		w.inexact = true
	case strings.Contains(text, "must go back"), strings.Contains(text, "checkpoint of step"),
		strings.Contains(text, "from scratch"), strings.Contains(text, "done again"):
		w.backwards = true
	}
	if e.GetWorker() != nil {
		w.veterans[process] = true
	}
	if e.GetFailure().GetResync() {
		delete(w.veterans, process)
	}
	if suspect := e.GetSuspect(); suspect.GetResync() {
		delete(w.veterans, w.rings[suspect.Generation][suspect.Rank])
	}
}

// hold checks the promise that a ring includes a member with a state if there is one.
func (w *world) hold(p cluster.Plan) {
	view, err := w.store.View(context.Background())
	if err != nil || p.Phase != cluster.Running {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rings[uint64(p.Generation)] = nil
	for _, m := range p.Members {
		name, _, _ := strings.Cut(m.ID, ".")
		w.rings[uint64(p.Generation)] = append(w.rings[uint64(p.Generation)], name)
	}
	has := func(m cluster.Member) bool {
		name, _, _ := strings.Cut(m.ID, ".")
		_, evicted := p.Eviction(m.ID)
		return w.veterans[name] && !evicted
	}
	if !slices.ContainsFunc(p.Members, has) && slices.ContainsFunc(view.Members, has) {
		w.broken = append(w.broken, fmt.Sprintf("generation %d has nobody with a state, and %+v "+
			"are there", p.Generation, view.Members))
	}
}

func (w *world) stepped(s *rondov1.StepEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onStep != nil {
		w.onStep()
	}
	// If a fault has hit every process of that ring, no process may be left that has the step.
	spared := slices.ContainsFunc(w.rings[w.furthest], func(name string) bool {
		return !w.hit[name]
	})
	if s.Step < w.highest && !w.backwards && spared {
		w.broken = append(w.broken, fmt.Sprintf("step %d again, after %d", s.Step, w.highest))
	}
	if s.Step > w.highest {
		w.backwards, w.furthest = false, s.Generation
	}
	w.losses[s.Step], w.highest = s.Loss, max(w.highest, s.Step)
}

func (r *simReporter) run() {
	tick := time.NewTicker(simPoll)
	defer tick.Stop()
	for {
		select {
		case <-r.closed:
			return
		case <-tick.C:
			r.send()
		}
	}
}

// send sends the leader the records that it lacks, if it can be reached.
func (r *simReporter) send() {
	ctx, cancel := context.WithTimeout(context.Background(), simTaken)
	defer cancel()
	leader, err := r.world.store.As(r.process).Leader(ctx)
	if err != nil {
		return
	}
	r.world.mu.Lock()
	c := r.world.coordinators[leader.ID]
	term := fmt.Sprintf("%s, term %d", c.id, c.terms)
	r.world.mu.Unlock()
	if r.leader != term {
		r.mu.Lock()
		r.leader, r.sent = term, 0
		r.mu.Unlock()
	}
	for {
		r.mu.Lock()
		if r.sent == len(r.records) {
			r.mu.Unlock()
			return
		}
		event := rpc.ClusterEvent(r.records[r.sent])
		r.mu.Unlock()
		select {
		case c.events <- event:
			r.mu.Lock()
			r.sent++
			r.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// Flush implements reporter.
func (r *simReporter) Flush(ctx context.Context) error {
	tick := time.NewTicker(simPoll)
	defer tick.Stop()
	for {
		r.mu.Lock()
		done := r.sent == len(r.records)
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-tick.C:
		case <-r.closed:
			return errors.New("closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close implements reporter.
func (r *simReporter) Close(ctx context.Context) error {
	err := r.Flush(ctx)
	r.once.Do(func() { close(r.closed) })
	return err
}
