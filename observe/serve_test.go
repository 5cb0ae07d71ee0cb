package observe

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rondo/dashboard"
)

// TestIdleConnectionsKeepNoProbeOut: a probe is answered although more connections than the page
// allows are open and say nothing.
func TestIdleConnectionsKeepNoProbeOut(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := newSite(dashboard.NewServer(dashboard.NewBoard("demo", time.Now)),
		prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	for range openLimit + 20 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	client := &http.Client{Timeout: headerTimeout / 2, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + listener.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
}
