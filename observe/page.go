package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"rondo/cluster"
	"rondo/coordinator"
	"rondo/dashboard"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/telemetry/metrics"
)

// Page is the web page of one run, in the process that runs it. That process passes the run's
// events to Show, so the page needs no stream of its own from the leader.
type Page struct {
	job      cluster.Job
	show     audience
	site     *site
	listener net.Listener
}

// OpenPage listens on a host:port for the page of a run that was submitted. Call Serve next.
func OpenPage(ctx context.Context, listen string, spec *rondov1.JobSpec) (*Page, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, err
	}
	board := dashboard.NewBoard(spec.Job, time.Now)
	figures := metrics.New(spec.Job, time.Now)
	p := &Page{job: coordinator.JobOf(spec), show: all{board, figures}, listener: listener,
		site: newSite(dashboard.NewServer(board), figures.Gatherer(),
			slog.New(slog.DiscardHandler))}
	p.show.Begin(runOf(spec))
	return p, nil
}

// URL returns the page's address for a browser of this machine.
func (p *Page) URL() string {
	address, ok := p.listener.Addr().(*net.TCPAddr)
	if ok && address.IP.IsUnspecified() { // every address of the machine, loopback too
		return fmt.Sprintf("http://127.0.0.1:%d", address.Port)
	}
	return "http://" + p.listener.Addr().String()
}

// Show shows an event of the run.
func (p *Page) Show(e telemetry.Event) { p.show.Show(e) }

// Serve serves browsers until ctx ends, and shows the stored job's state every second.
func (p *Page) Serve(ctx context.Context, store cluster.Viewer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.site.serve(ctx, p.listener) })
	group.Go(func() error {
		due := time.NewTicker(viewPause)
		defer due.Stop()
		for {
			p.look(ctx, store)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-due.C:
			}
		}
	})
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (p *Page) look(ctx context.Context, store cluster.Viewer) {
	limited, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	view, err := store.View(limited)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer for %v", viewTimeout)
		}
		p.show.Trouble(metrics.Etcd, err.Error())
	default:
		p.show.Trouble(metrics.Etcd, "")
		p.show.Stand(StandingOf(p.job, view))
		p.site.ready()
	}
}

// runOf returns a run for an audience.
func runOf(spec *rondov1.JobSpec) telemetry.Run {
	return telemetry.Run{Number: spec.Submitted}
}
