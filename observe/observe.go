// Package observe is a process that watches a job and trains nothing. It follows the job through
// etcd and the leader, from run to run, and serves a web page, JSON and figures for Prometheus. In
// Kubernetes it also writes the job's progress into the annotations of the workers' Job, and passes
// that Job's wishes to the leader: its number of workers, and a request to stop. It goes on while
// etcd, the leader or the API server is away, and shows which one is.
package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/dashboard"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/telemetry/metrics"
)

// Limits of waits.
const (
	patience      = time.Duration(math.MaxInt64) // of the watch, which ends with the run or ctx
	scalePatience = 10 * time.Second             // for the leader to answer a request
	openPause     = 2 * time.Second              // between attempts to reach etcd at the start
)

// Config selects the job and the address of the page.
type Config struct {
	Meet   meet.Config // how etcd and the leader are reached
	Listen string      // host:port of the web page
	Beside *Beside     // the Kubernetes Job; nil: there is none

	// Opened is called with the web page's address; nil: not called.
	Opened func(address string)
}

// Run observes until ctx ends. It returns an error if it cannot listen.
func Run(ctx context.Context, cfg Config) error {
	cfg.Meet.Role = certs.Observer
	if cfg.Beside != nil { // it passes on what people ask of the Job
		cfg.Meet.Role = certs.User
	}
	if err := cfg.Meet.Validate(); err != nil {
		return app.Usage(err)
	}
	if _, _, err := net.SplitHostPort(cfg.Listen); err != nil {
		return app.Usagef("--listen %q is not host:port: %w", cfg.Listen, err)
	}
	if certs.Exposed(cfg.Listen) && !cfg.Meet.Insecure {
		return app.Usagef("--listen %s is open to other machines, and the page is plain HTTP: "+
			"give --insecure to let anybody there read it", cfg.Listen)
	}
	if _, err := cfg.Meet.Identity(); err != nil { // fail before the wait for etcd
		return err
	}
	o := newObserver(cfg)
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if cfg.Opened != nil {
		cfg.Opened(listener.Addr().String())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.site.serve(ctx, listener) })
	group.Go(func() error { return o.follow(ctx) })
	if cfg.Beside != nil {
		group.Go(func() error { return o.keep(ctx) })
	}
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // ctx has ended
	}
	return err
}

// observer is the process.
type observer struct {
	cfg   Config
	log   *slog.Logger
	board *dashboard.Board
	show  audience
	site  *site
	found chan found // looks at the job; only the newest waits
}

// found is a look at a job, with the requests to its leader and to etcd.
type found struct {
	view   cluster.View
	scale  func(ctx context.Context, workers int) error
	stop   func(ctx context.Context, reason string) error
	forget func(context.Context) error
}

func newObserver(cfg Config) *observer {
	o := &observer{cfg: cfg, log: cfg.Meet.Log, found: make(chan found, 1)}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	o.board = dashboard.NewBoard(cfg.Meet.Job, time.Now)
	figures := metrics.New(cfg.Meet.Job, time.Now)
	o.show = all{o.board, figures}
	o.site = newSite(dashboard.NewServer(o.board), figures.Gatherer(), o.log)
	return o
}

// follow follows the job, once etcd answers.
func (o *observer) follow(ctx context.Context) error {
	for {
		store, err := o.cfg.Meet.Store(ctx)
		if err == nil {
			defer func() { _ = store.Close() }()
			return o.followIn(ctx, store)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		o.show.Trouble(metrics.Etcd, err.Error())
		o.log.Warn("trying again", "error", err)
		if !sleep(ctx, openPause) {
			return ctx.Err()
		}
	}
}

func (o *observer) followIn(ctx context.Context, store *etcdstore.Store) error {
	notes := &away{Handler: o.log.Handler(), now: time.Now}
	watched := o.cfg.Meet
	watched.Log = slog.New(notes)
	watching, err := watched.Client(store, patience)
	if err != nil {
		return err
	}
	asking, err := o.cfg.Meet.Client(store, scalePatience)
	if err != nil {
		return err
	}
	f := &follower{store: store, watch: watching.Watch, show: o.show, away: notes, log: o.log,
		ready: o.site.ready, seen: func(v cluster.View) {
			o.hand(found{v, asking.Scale, asking.Stop, store.Forget})
		}}
	return f.run(ctx)
}

// hand passes a look to keep, and replaces one that keep has not taken.
func (o *observer) hand(now found) {
	select {
	case <-o.found:
	default:
	}
	o.found <- now // there is no other sender
}
