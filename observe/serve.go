package observe

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"rondo/dashboard"
	"rondo/internal/certs"
	"rondo/internal/connlimit"
)

// Limits of the HTTP server.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second // streams set their own, message by message
	idleTimeout   = 60 * time.Second
	headerLimit   = 16 << 10 // bytes
	openLimit     = 256      // connections at a time
	scrapeLimit   = 4        // of /metrics at a time
	scrapeTimeout = 10 * time.Second
	closeTimeout  = 2 * time.Second // for answers in progress, at the end
)

// site is the observer's HTTP server.
type site struct {
	pages    *dashboard.Server
	server   *http.Server
	answered atomic.Bool // etcd has answered once
}

func newSite(pages *dashboard.Server, figures prometheus.Gatherer, log *slog.Logger) *site {
	s := &site{pages: pages}
	mux := http.NewServeMux()
	pages.Register(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(figures, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapeLimit, Timeout: scrapeTimeout}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout,
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerLimit, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelInfo)}
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

// localHost refuses requests for other hosts than an IP address or localhost. A page of the
// internet can give its own host name this machine's address, and then read in a browser here what
// only this machine may (DNS rebinding).
func localHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]") // without a port
		}
		if host != "localhost" && net.ParseIP(host) == nil {
			http.Error(w, "this page is for this machine alone: ask for localhost",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serve serves a listener until ctx ends.
func (s *site) serve(ctx context.Context, listener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	// Idle connections keep no probe out.
	bounded := connlimit.New(listener, func() int { return openLimit })
	if !certs.Exposed(listener.Addr().String()) {
		s.server.Handler = localHost(s.server.Handler)
	}
	s.server.ConnState = bounded.ConnState()
	group.Go(func() error { return s.pages.Run(ctx) })
	group.Go(func() error {
		err := s.server.Serve(bounded)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	group.Go(func() error {
		<-ctx.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if s.server.Shutdown(limited) != nil {
			_ = s.server.Close()
		}
		return ctx.Err()
	})
	return group.Wait()
}
