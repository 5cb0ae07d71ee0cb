// Package web runs an HTTP server that strangers may reach: all that a client can make it hold or
// wait for is bounded. It knows no page. It may import internal/connlimit and internal/certs.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"rondo/internal/certs"
	"rondo/internal/connlimit"
)

// Limits of a server.
const (
	OpenLimit = 256 // connections at a time

	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	idleTimeout   = 60 * time.Second
	headerLimit   = 16 << 10        // bytes
	closeTimeout  = 2 * time.Second // for answers in progress, at the end

	// WriteTimeout is the time to write an answer, or one message of a stream.
	WriteTimeout = 30 * time.Second
)

// Serve serves a listener, which it closes, until ctx ends: HTTPS, or HTTP if secure is nil. On
// loopback it answers for this machine alone. Errors of clients go to log.
func Serve(
	ctx context.Context, listener net.Listener, secure *tls.Config, handler http.Handler,
	log *slog.Logger,
) error {
	if !certs.Exposed(listener.Addr().String()) {
		handler = localHost(handler)
	}
	// Idle connections keep no probe out.
	bounded := connlimit.New(listener, func() int { return OpenLimit })
	var accepted net.Listener = bounded
	if secure != nil {
		accepted = tls.NewListener(bounded, secure)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout,
		ReadTimeout: readTimeout, WriteTimeout: WriteTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerLimit, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelInfo),
		ConnState: bounded.ConnState()}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := server.Serve(accepted)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	group.Go(func() error {
		<-ctx.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close()
		}
		return ctx.Err()
	})
	return group.Wait()
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
