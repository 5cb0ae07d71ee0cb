package observe

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"rondo/dashboard"
	"rondo/internal/web"
)

// Limits of /metrics.
const (
	scrapeLimit   = 4 // at a time
	scrapeTimeout = 10 * time.Second
)

// site is the observer's HTTP server.
type site struct {
	pages    *dashboard.Server
	handler  http.Handler
	log      *slog.Logger
	answered atomic.Bool // etcd has answered once
}

func newSite(pages *dashboard.Server, figures prometheus.Gatherer, log *slog.Logger) *site {
	mux := http.NewServeMux()
	s := &site{pages: pages, handler: mux, log: log}
	pages.Register(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(figures, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapeLimit, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	return s
}

// ready records that etcd has answered. It stays set when etcd goes away: the page then shows the
// last known state and that etcd is away.
func (s *site) ready() { s.answered.Store(true) }

func (s *site) readyz(w http.ResponseWriter, _ *http.Request) {
	if !s.answered.Load() {
		http.Error(w, "etcd has not answered yet", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// serve serves a listener until ctx ends.
func (s *site) serve(ctx context.Context, listener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.pages.Run(ctx) })
	group.Go(func() error { return web.Serve(ctx, listener, nil, s.handler, s.log) })
	return group.Wait()
}
