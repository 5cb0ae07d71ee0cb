//go:build !wasm

package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/connlimit"
	"rondo/internal/health"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// This file and command.go make a worker of an operating system's process. The simulation replaces
// them, and is compiled for WebAssembly without them.

// refusalTime is how long a member's host may refuse connections to it until another member takes
// it for ended. A worker listens before it registers, so a member that lives never refuses them.
const refusalTime = 200 * time.Millisecond

// A member to which no connection opens within silenceTime counts as lost, in a ring that follows a
// loss. That leaves time for a packet that is lost, and sent again after a second.
const silenceTime = 1500 * time.Millisecond

// A worker has at most this many open connections at its port for each worker of the ring, and more
// for those of the next ring.
const (
	connectionsPerWorker = 4
	moreConnections      = 32
)

// Config says where the job is and on which device the worker computes.
type Config struct {
	meet.Config
	Device string // --device; empty: the job's
	// Allow is what the job's spec may name on this machine.
	Allow jobspec.Allow
}

// validate returns a usage error for invalid flags.
func (c Config) validate() error {
	if c.Device != "" {
		if _, err := jobspec.ParseDevice(c.Device); err != nil {
			return err
		}
	}
	return app.Usage(c.Config.Validate())
}

// Run works for the job until it has ended. It returns what it did, or why it failed. When ctx
// ends, the worker leaves after the current step, the others go on without it, and the error is an
// app.LeftError.
func Run(ctx context.Context, cfg Config) (did string, err error) {
	cfg.Role = certs.Worker
	if err := cfg.validate(); err != nil {
		return "", err
	}
	if err := cfg.CheckListeners(ctx); err != nil {
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
	case err != nil && w.failureKnown:
		return "", &reportedError{err}
	case err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)):
		return "", err
	case w.end == nil:
		return "", &app.LeftError{Text: w.left()}
	}
	return w.done(), nil
}

func newWorker(cfg Config) *worker {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	w := &worker{reports: reports{log: log}, own: cfg.Device, allow: cfg.Allow}
	number := int(time.Now().UnixNano() % 1e9)
	w.name = fmt.Sprintf("%s-%d-%d", meet.HostName(), os.Getpid(), number)
	w.member = cluster.Member{ID: w.name, Host: meet.HostName(), PID: os.Getpid(),
		Process: rand.Text(), Version: meet.Version()}
	if cfg.Host != "" {
		// Each container of a machine has its own process ids.
		w.member.Host, w.member.PID, w.alone = cfg.Host, -max(number, 1), true
	}
	return w
}

// run finds the job and works for it.
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
	w.newReporter = func(id string) (reporter, error) { return client.NewReporter(id) }
	if err := w.beginReports(w.name); err != nil {
		return err
	}
	err = w.serve(ctx, cfg)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		w.farewell(ctx, nil) // it was asked to leave, which is no failure
		return err
	}
	w.farewell(ctx, err)
	return w.verdict(ctx, err)
}

// linkBy sets connect and reach: they accept links at the server, and dial with this configuration.
func (w *worker) linkBy(links *grpclink.Server, dialing grpclink.DialConfig) {
	w.connect = func(ctx context.Context, seat grpclink.Seat, addresses []string,
		silence time.Duration) (allreduce.Links, error) {
		dialing := dialing
		dialing.Silence = silence
		formed, err := grpclink.Connect(ctx, links, seat, addresses, dialing)
		if ways := grpclink.Describe(formed); ways != "" {
			w.log.Debug("the ring is linked", "generation", seat.Generation, "links", ways)
		}
		return formed, err
	}
	w.reach = func(ctx context.Context, address string) error {
		return grpclink.Reach(ctx, address, dialing)
	}
}

// serve opens the corpus, the device and the listeners, and then works.
func (w *worker) serve(ctx context.Context, cfg meet.Config) (err error) {
	if err := w.allow.Check(w.spec); err != nil {
		return err
	}
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
	w.member.Identity = jobspec.Identity(w.spec, w.data.Fingerprint())
	way := linkedBy(w.spec)
	var links *grpclink.Server
	bounded := connlimit.New(listener, func() int {
		return connectionsPerWorker*links.World() + moreConnections
	})
	links, err = grpclink.NewServer(w.spec.Job, grpclink.ServerConfig{
		PlanTimeout: w.spec.StepTimeout.AsDuration(), Transport: way, Keep: bounded.Keep})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	identity, err := cfg.Identity()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	dialing := grpclink.DialConfig{Timeout: w.spec.StepTimeout.AsDuration(), Transport: way,
		Refusals: refusalTime}
	var creds credentials.TransportCredentials
	if identity != nil {
		creds = identity.ServerCredentials(w.log, certs.Worker)
		dialing.Credentials = identity.ClientCredentials(certs.Name, w.log, certs.Worker)
	}
	w.linkBy(links, dialing)
	server := grpc.NewServer(grpclink.ServerOptions(creds)...)
	links.Register(server)
	local := links.ListenLocal() // before other workers can ask for it
	served := make(chan error, 1)
	go func() { served <- server.Serve(bounded) }()
	var beside sync.WaitGroup
	if local != nil {
		beside.Go(func() { _ = server.Serve(local) }) // after an error, TCP serves
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

// linkedBy returns the kind of link that --link or --intra-host asks for.
func linkedBy(spec *rondov1.JobSpec) grpclink.Transport {
	for _, way := range []grpclink.Transport{grpclink.ByTCP, grpclink.ByUnix, grpclink.ByShm} {
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
