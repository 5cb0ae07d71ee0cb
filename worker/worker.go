// Package worker is a worker process: it finds its job in etcd, registers, and trains its lanes in
// one ring after another, as the coordinator plans them, until the job's end.
//
// What it has trained outlives the rings: the engine (device, model, trainer) is opened once. A
// ring is a session; what happens between two of them is in life.go.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/compute"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/health"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Limits of the waits at a worker's end.
const (
	farewellTimeout = 5 * time.Second // to tell the coordinator why this worker ends
	leaveTimeout    = 3 * time.Second // to give the registration up
)

// fabric is the world around a worker: etcd, whoever leads, and the ring's network.
type fabric struct {
	registry cluster.Registry
	// report returns the reporter of a member.
	report func(id string) (reporter, error)
	// connect joins the ring of a seat, of members with these addresses.
	connect func(ctx context.Context, seat grpclink.Seat, addresses []string) (
		allreduce.Links, error)
	// claim returns true once in a job for each name.
	claim func(ctx context.Context, name string) (bool, error)
}

// reporter tells whoever leads what happens here; rpc.Reporter is one.
type reporter interface {
	Report(ctx context.Context, e *rondov1.Event) error
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// Config says where a worker stands, and computes.
type Config struct {
	meet.Config
	Device string // --device; empty: as the job says
}

// validate returns a usage error of what a person wrote.
func (c Config) validate() error {
	if c.Device != "" {
		if _, err := jobspec.ParseDevice(c.Device); err != nil {
			return err
		}
	}
	return app.Usage(c.Config.Validate())
}

// worker is one process of one job.
type worker struct {
	fabric
	log    *slog.Logger
	alone  bool // it shares its cores with no other worker
	spec   *rondov1.JobSpec
	data   *job.Data
	name   string         // the process's own; a member's id begins with it
	member cluster.Member // as it is registered, or was last
	own    string         // its own --device; empty: the job's
	device compute.Device // nil before it is opened
	engine *engine        // nil before the first ring
	hasSat bool           // a ring with this worker has formed
	well   bool           // a ring with this worker has trained for a while
	end    *cluster.Plan  // with which the job has ended well; nil: it has not
	kept   bool           // this worker saved what it held when it left

	groupFault string // why its device is in no group any more; empty: it may be

	started health.Flag // it has its spec and its text
	ready   health.Flag // it is registered
	pulse   pulse

	voice atomic.Pointer[voice] // of the member
	told  bool                  // the coordinator was told why this worker fails
	heard bool                  // it knows, or has said so itself
}

// voice is a member's reporter.
type voice struct {
	reporter
	id string
}

func (w *worker) openVoice() error {
	r, err := w.report(w.member.ID)
	if err == nil {
		w.voice.Store(&voice{reporter: r, id: w.member.ID})
	}
	return err
}

// tellEvent queues an event; a coordinator that does not listen must not stop the training.
func (w *worker) tellEvent(ctx context.Context, e *rondov1.Event) {
	if err := w.voice.Load().Report(ctx, e); err != nil {
		w.log.Warn("an event is lost", "error", err)
	}
}

func (w *worker) notice(ctx context.Context, text string) {
	w.tellEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Id: w.voice.Load().id, Text: text}}})
}

// jobNotice is a notice of the job, not of the worker that happens to tell it.
func (w *worker) jobNotice(ctx context.Context, text string) {
	w.tellEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Notice{
		Notice: &rondov1.NoticeEvent{Text: text}}})
}

// flush waits for the coordinator to have what it was told, but not for long.
func (w *worker) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout)
	defer cancel()
	if err := w.voice.Load().Flush(ctx); err != nil {
		w.log.Debug("the coordinator does not answer", "error", err)
	}
}

// heardError is a failure that the coordinator knows.
type heardError struct{ error }

func (e *heardError) Unwrap() error { return e.error }

// Run works for the job until it has ended, and says what it did, or why it failed. When ctx ends
// the worker leaves at a step's end, the others go on without it, and the error is an
// app.LeftError.
func Run(ctx context.Context, cfg Config) (did string, err error) {
	if err := cfg.validate(); err != nil {
		return "", err
	}
	w := newWorker(cfg)
	stop, err := health.Serve(cfg.Health, health.Checks{Started: w.started.Is, Ready: w.ready.Is,
		Alive: w.alive})
	if err != nil {
		return "", err
	}
	defer stop()
	err = w.run(ctx, cfg.Config)
	switch {
	case err != nil && w.heard:
		return "", &heardError{err}
	case err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)):
		return "", err
	case w.end == nil:
		return "", &app.LeftError{Text: w.left()}
	}
	return w.done(), nil
}

func newWorker(cfg Config) *worker {
	w := &worker{log: cfg.Log, own: cfg.Device}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	number := int(time.Now().UnixNano() % 1e9)
	w.name = fmt.Sprintf("%s-%d-%d", meet.HostName(), os.Getpid(), number)
	w.member = cluster.Member{ID: w.name, Host: meet.HostName(), PID: os.Getpid(),
		Version: meet.Version()}
	if cfg.Host != "" {
		// Containers of one machine count their processes each for itself.
		w.member.Host, w.member.PID, w.alone = cfg.Host, -max(number, 1), true
	}
	return w
}

// run finds the job, and works for it.
func (w *worker) run(ctx context.Context, cfg meet.Config) error {
	store, err := cfg.Store(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if w.spec, err = cfg.Spec(ctx, store); err != nil {
		return err
	}
	if cfg.Run > 0 && w.spec.Submitted > cfg.Run {
		return superseded(w.spec.Job, cfg.Run, w.spec.Submitted)
	}
	w.pulse.follow(w.spec)
	client, err := cfg.Client(store, 0)
	if err != nil {
		return err
	}
	w.registry, w.claim = store, store.Claim
	w.report = func(id string) (reporter, error) { return client.NewReporter(id) }
	if err := w.openVoice(); err != nil {
		return err
	}
	err = w.serve(ctx, cfg)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		w.farewell(ctx, nil) // it was asked to go, which is nobody's failure
		return err
	}
	w.farewell(ctx, err)
	return w.verdict(ctx, err)
}

// verdict is a worker's failure as its exit code is to tell it. Whether another try is useless is
// not for one process to say, whose machine may be to blame: only the leader fails the job, when it
// has heard of the failure, and only then is the code that of a failed job. The code of wrong input
// is left to flags: a process that crashes has it, too.
func (w *worker) verdict(ctx context.Context, err error) error {
	var ended *endedError
	var failed *app.JobError
	if err == nil || errors.As(err, &ended) || errors.As(err, &failed) {
		return err // the leader has said so
	}
	told, own := w.failure(err).GetFailure(), errors.New(err.Error())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if newer := w.newerRun(ctx); newer != 0 {
		return superseded(w.spec.Job, w.spec.Submitted, newer)
	}
	var last cluster.Plan
	seen := errors.New("the plan is known")
	_ = w.registry.WatchPlan(ctx, func(p cluster.Plan) error {
		last = p
		if p.Phase != cluster.Ended && w.heard && (told.Usage || told.Fatal) {
			return nil // what the leader does about it follows
		}
		return seen
	})
	if last.Phase == cluster.Ended && last.Failed {
		return &app.JobError{Err: own}
	}
	return own
}

// superseded is the end of a worker of an older run.
func superseded(name string, run, newer int64) error {
	return &app.JobError{Err: fmt.Errorf("this worker is of run %d of job %s, and run %d has been "+
		"submitted since: nothing is left to do for it", run, name, newer)}
}

// step is the last step that this worker has completed; 0: none.
func (w *worker) step() int64 {
	if w.engine == nil || w.engine.heard == nil {
		return 0
	}
	return w.engine.heard.last.Step
}

// done says what this worker did for a job that has ended well.
func (w *worker) done() string {
	if step := w.step(); step > 0 {
		return fmt.Sprintf("done after step %d: %s", step, w.end.Reason)
	}
	return "the job has ended without a step of this worker: " + w.end.Reason
}

// left says how this worker left a job that has not ended.
func (w *worker) left() string {
	text := "asked to go before the job's end"
	step := w.step()
	switch {
	case w.kept && step > 0:
		return fmt.Sprintf("%s, with too few others to go on; step %d is kept in a checkpoint",
			text, step)
	case step > 0:
		return fmt.Sprintf("%s, after step %d; the others go on", text, step)
	}
	return text + ", and before its first step"
}

// serve opens what the job needs here, and works.
func (w *worker) serve(ctx context.Context, cfg meet.Config) (err error) {
	if w.data, err = job.OpenData(ctx, w.spec); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.data.Close()) }()
	w.started.Set(true)
	listener, err := cfg.Open(ctx)
	if err != nil {
		return err
	}
	if err := w.openDevice(); err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { err = errors.Join(err, w.closeDevice()) }()
	w.member.Address, w.member.Device = listener.Addr().String(), w.device.Name()
	w.member.Identity = jobspec.Identity(w.spec, w.data.Corpus.Fingerprint())
	way := linkedBy(w.spec)
	links, err := grpclink.NewServer(w.spec.Job, grpclink.ServerConfig{
		PlanTimeout: w.spec.StepTimeout.AsDuration(), Way: way})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	identity, err := cfg.Identity()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	dialing := grpclink.DialConfig{Timeout: w.spec.StepTimeout.AsDuration(), Way: way}
	var creds credentials.TransportCredentials
	if identity != nil {
		creds = identity.ServerCredentials(w.log)
		dialing.Credentials = identity.ClientCredentials(certs.Name, w.log)
	}
	w.connect = func(ctx context.Context, seat grpclink.Seat, addresses []string) (
		allreduce.Links, error) {
		formed, err := grpclink.Connect(ctx, links, seat, addresses, dialing)
		if ways := grpclink.Describe(formed); ways != "" {
			w.log.Debug("the ring is linked", "generation", seat.Generation, "links", ways)
		}
		return formed, err
	}
	server := grpc.NewServer(grpclink.ServerOptions(creds)...)
	links.Register(server)
	local := links.ListenLocal() // before anybody can ask for it
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var beside sync.WaitGroup
	if local != nil {
		beside.Go(func() { _ = server.Serve(local) }) // without it there is TCP
	}
	defer func() {
		server.Stop()
		beside.Wait()
		if stopped := <-served; !errors.Is(stopped, grpc.ErrServerStopped) {
			err = errors.Join(err, stopped)
		}
	}()
	return w.live(ctx)
}

// linkedBy is what --link asks of neighbours; --intra-host may say the same.
func linkedBy(spec *rondov1.JobSpec) grpclink.Way {
	for _, way := range []grpclink.Way{grpclink.ByTCP, grpclink.ByUnix, grpclink.ByShm} {
		if spec.Link == way.String() {
			return way
		}
	}
	switch spec.IntraHost {
	case "grpc":
		return grpclink.ByTCP
	case "shm":
		return grpclink.ByShm
	}
	return grpclink.ByAny
}

// tell tells the coordinator, once, why this worker cannot go on, unless it was the coordinator
// who said so. It returns when the coordinator has it: only then may others see this worker go.
func (w *worker) tell(ctx context.Context, err error) {
	var ended *endedError
	if errors.As(err, &ended) {
		w.heard = true
	}
	if err == nil || w.told || w.heard {
		return
	}
	w.told = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	reportErr := w.voice.Load().Report(ctx, w.failure(err))
	if reportErr == nil {
		reportErr = w.voice.Load().Flush(ctx)
	}
	w.heard = reportErr == nil
	if reportErr != nil {
		w.log.Warn("telling the coordinator of a failure", "error", reportErr)
	}
}

// farewell is a member's last word.
func (w *worker) farewell(ctx context.Context, err error) {
	w.tell(ctx, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	if w.told && !w.heard {
		cancel() // nobody answers; that was waited for already
	}
	if err := w.voice.Load().Close(ctx); err != nil {
		w.log.Debug("leaving without the coordinator's answer", "error", err)
	}
}

// failure says whether the error is this worker's alone, or one that every worker would meet.
func (w *worker) failure(err error) *rondov1.Event {
	f := &rondov1.FailureEvent{Id: w.member.ID, Text: err.Error()}
	var wrong *app.UsageError
	var spec *jobspec.UsageError
	var ring *ringError
	f.Usage = errors.As(err, &wrong) || errors.As(err, &spec)
	if errors.As(err, &ring) {
		f.Generation, f.Fatal = uint64(ring.generation), ring.fatal
	}
	return &rondov1.Event{Kind: &rondov1.Event_Failure{Failure: f}}
}
