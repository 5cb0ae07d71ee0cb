package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"rondo/local"

	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// jobName of the cluster's job.
const jobName = "recovery"

// settledSteps is how many steps a ring takes before something is done to it.
const settledSteps = 10

// look is the time between two looks at the store.
const look = 10 * time.Millisecond

// A machineRoom is a job of separate processes: etcd, two coordinators, workers. Its steps are read
// from the workers' audit logs, which do not depend on the leader.
type machineRoom struct {
	config
	*stage
	etcd  *local.Etcd
	store *etcdstore.Store

	coordinators map[int]*process // by process id
	worlds       map[uint64]int64 // workers of each generation
	first        map[int64]event  // first commit of each step that is kept
	newest       event            // of them
	began        int64            // first step of the newest ring
}

// openRoom starts etcd, submits the job, and starts its processes.
func (c config) openRoom(ctx context.Context, s *stage) (r *machineRoom, err error) {
	r = &machineRoom{config: c, stage: s, coordinators: map[int]*process{},
		worlds: map[uint64]int64{}, first: map[int64]event{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.etcd, err = local.StartEtcd(ctx, filepath.Join(s.dir, "etcd")); err != nil {
		return nil, err
	}
	r.store, err = etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{r.etcd.Endpoint()},
		Job: jobName})
	if err != nil {
		return nil, err
	}
	spec, err := c.spec(s)
	if err != nil {
		return nil, err
	}
	if _, _, err := r.store.PutSpec(ctx, spec); err != nil {
		return nil, err
	}
	for range 2 {
		if err := r.coordinator(); err != nil {
			return nil, err
		}
	}
	for range c.Workers {
		if _, err := r.worker(); err != nil {
			return nil, err
		}
	}
	s.work.Go(func() { s.follow(filepath.Join(s.dir, "audit")) })
	return r, nil
}

// close ends everything but the processes of the stage.
func (r *machineRoom) close() error {
	var err error
	if r.store != nil {
		err = r.store.Close()
	}
	if r.etcd != nil {
		r.etcd.Close()
	}
	return err
}

// spec is the job that config.rondoCommand has, with room for one more worker.
func (c config) spec(s *stage) ([]byte, error) {
	spec := jobspec.Textbook()
	spec.Job, spec.Submitted = jobName, time.Now().UnixNano()
	spec.Normalize, spec.Hidden = "letters", int64(c.Hidden)
	spec.Batch, spec.Bptt, spec.Threads = int64(c.Batch), int64(c.BPTT), int64(c.Threads)
	spec.Lr, spec.SampleTokens, spec.Device, spec.Resume = 0.1, 0, "cpu", "never"
	spec.Workers, spec.MaxWorkers = int64(c.Workers), int64(c.Workers)+1
	spec.Steps, spec.LeaseTtl = endless, durationpb.New(c.LeaseTTL)
	spec.AuditDir = filepath.Join(s.dir, "audit")
	spec.CheckpointDir = jobspec.NoCheckpoints
	if err := jobspec.Validate(spec); err != nil {
		return nil, err
	}
	return proto.Marshal(spec)
}

func (r *machineRoom) coordinator() error {
	p, err := r.start("coordinator", r.Coordinator, "--etcd", r.etcd.Endpoint(), "--job", jobName)
	if err == nil {
		r.coordinators[p.pid()] = p
	}
	return err
}

func (r *machineRoom) worker() (*process, error) {
	return r.start("worker", r.Worker, "--etcd", r.etcd.Endpoint(), "--job", jobName,
		"--allow-path", filepath.Join(r.dir, "audit"))
}

// hear takes the next event of the audit logs.
func (r *machineRoom) hear(e event) {
	switch e.Event {
	case "ring":
		r.worlds[e.Generation] = e.WorldSize
	case "commit":
		if _, known := r.first[e.Step]; known {
			return
		}
		if e.Generation != r.newest.Generation {
			r.began = e.Step
		}
		r.first[e.Step], r.newest = e, e
		delete(r.first, e.Step-keptSteps)
	}
}

// keptSteps bounds how many steps' commits are known.
const keptSteps = 1 << 10

// await hears events until done, which is asked after each.
func (r *machineRoom) await(ctx context.Context, what string, done func(event) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		fmt.Errorf("no %s within %v, after step %d", what, r.Timeout, r.newest.Step))
	defer cancel()
	for {
		select {
		case e := <-r.events:
			r.hear(e)
			if e.Event == unreadable {
				return errors.New(e.Reason)
			}
			if done(e) {
				return nil
			}
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), r.dead())
		}
	}
}

// ringOf waits until a ring of this many workers has taken some steps, and returns the first of
// them.
func (r *machineRoom) ringOf(ctx context.Context, workers, steps int) (event, error) {
	err := r.await(ctx, fmt.Sprintf("ring of %d", workers), func(event) bool {
		return r.worlds[r.newest.Generation] == int64(workers) &&
			r.newest.Step-r.began+1 >= int64(steps)
	})
	return r.first[r.began], err
}

// An entry is the times of a new worker: to come in, and to leave again.
type entry struct {
	start      time.Duration // from its start to the first step of the bigger ring
	registered time.Duration // from its entry in etcd
	pause      time.Duration // between the last step of the old ring and the first of the bigger
	forming    time.Duration // the part of it before the new ring agreed, the state's copy included
	leave      time.Duration // the same pause, when it goes on SIGTERM
}

// join lets a worker come, and go.
func (r *machineRoom) join(ctx context.Context) (e entry, err error) {
	if _, err := r.ringOf(ctx, r.Workers, settledSteps); err != nil {
		return e, err
	}
	began := time.Now()
	p, err := r.worker()
	if err != nil {
		return e, err
	}
	watching, stop := context.WithTimeout(ctx, r.Timeout)
	defer stop()
	seen := make(chan time.Time, 1)
	go r.registration(watching, p.pid(), seen)
	var formed time.Time
	err = r.await(ctx, "bigger ring", func(e event) bool {
		if e.Event == "ring" && e.WorldSize == int64(r.Workers)+1 {
			formed = e.At // of the rank that is the last to say so
		}
		return r.worlds[r.newest.Generation] == int64(r.Workers)+1
	})
	if err != nil {
		return e, errors.Join(err, p.dead())
	}
	first, last := r.newest, r.first[r.began-1]
	registered, ok := <-seen
	if !ok {
		return e, errors.New("a worker is in the ring that has not been seen to register")
	}
	e.start, e.registered = first.At.Sub(began), first.At.Sub(registered)
	e.pause, e.forming = first.At.Sub(last.At), formed.Sub(last.At)
	if _, err := r.ringOf(ctx, r.Workers+1, settledSteps); err != nil {
		return e, err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return e, err
	}
	if first, err = r.ringOf(ctx, r.Workers, 1); err != nil {
		return e, err
	}
	e.leave = first.At.Sub(r.first[first.Step-1].At)
	return e, nil
}

// registration tells when a process has become a member, and closes the channel.
func (r *machineRoom) registration(ctx context.Context, pid int, seen chan<- time.Time) {
	defer close(seen)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for ctx.Err() == nil {
		view, err := r.store.View(ctx)
		for _, m := range view.Members {
			if err == nil && m.PID == pid {
				seen <- time.Now()
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// A succession is the cost of a leader's loss.
type succession struct {
	usual   time.Duration // median of the steps' times before it
	longest time.Duration // of the times between two steps, from before the kill until after
	control time.Duration // the same over as many steps after that
	served  time.Duration // from the kill until another leader has answered
}

// takeover kills the leader, and starts another coordinator when there is a new one.
func (r *machineRoom) takeover(ctx context.Context) (s succession, err error) {
	if _, err := r.ringOf(ctx, r.Workers, 3*settledSteps); err != nil {
		return s, err
	}
	s.usual = r.usual(r.newest.Step)
	leader, err := r.store.Leader(ctx)
	if err != nil {
		return s, err
	}
	var victim *process
	for pid, p := range r.coordinators {
		if strings.Contains(leader.ID, fmt.Sprintf("-%d-", pid)) {
			victim = p
		}
	}
	if victim == nil {
		return s, fmt.Errorf("the leader, %s, is none of our coordinators", leader.ID)
	}
	delete(r.coordinators, victim.pid())
	before, generation, began := r.newest, r.newest.Generation, time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return s, err
	}
	watching, stop := context.WithTimeout(ctx, r.Timeout)
	defer stop()
	type answer struct {
		at  time.Time
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		err := r.successor(watching, leader.ID)
		answers <- answer{time.Now(), err}
	}()
	var served answer
	err = r.await(ctx, "new leader", func(event) bool {
		select {
		case served = <-answers:
			return true
		default:
			return false
		}
	})
	if err = errors.Join(err, served.err); err != nil {
		return s, err
	}
	s.served = served.at.Sub(began)
	last := r.newest.Step + settledSteps
	if err := r.await(ctx, "step under the new leader",
		func(event) bool { return r.newest.Step >= last }); err != nil {
		return s, err
	}
	if r.newest.Generation != generation {
		return s, fmt.Errorf("the ring was formed anew when the leader changed: generation %d, "+
			"then %d", generation, r.newest.Generation)
	}
	until := r.newest.Step
	s.longest = r.longest(before.Step, until)
	again := 2*until - before.Step
	err = r.await(ctx, "step", func(event) bool { return r.newest.Step >= again })
	s.control = r.longest(until, again)
	return s, errors.Join(err, r.coordinator())
}

// longest is the longest time between two steps from one step to another.
func (r *machineRoom) longest(from, to int64) (d time.Duration) {
	for step := from + 1; step <= to; step++ {
		d = max(d, r.first[step].At.Sub(r.first[step-1].At))
	}
	return d
}

// usual is the median of the times of the newest steps up to one.
func (r *machineRoom) usual(step int64) time.Duration {
	var all []time.Duration
	for s := max(r.began, step-3*settledSteps) + 1; s <= step; s++ {
		all = append(all, r.first[s].At.Sub(r.first[s-1].At))
	}
	return time.Duration(percentile(seconds(all), 0.5) * float64(time.Second))
}

// errHeard ends a watch that has heard something.
var errHeard = errors.New("heard")

// successor returns when another leader than the one of that id has told something.
func (r *machineRoom) successor(ctx context.Context, id string) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		leader, err := r.store.Leader(ctx)
		if err == nil && leader.ID != id {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("nobody leads after %s: %w", id, context.Cause(ctx))
		}
	}
	client, err := rpc.NewClient(func(ctx context.Context) (string, error) {
		leader, err := r.store.Leader(ctx)
		return leader.Address, err
	}, rpc.ClientConfig{})
	if err != nil {
		return err
	}
	err = client.Watch(ctx, func(*rondov1.Event) error { return errHeard })
	if errors.Is(err, errHeard) {
		return nil
	}
	return err
}
