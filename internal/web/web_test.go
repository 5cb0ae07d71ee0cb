package web

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"
)

// serve answers 200 on loopback until the test ends, and returns its host:port.
func serve(t *testing.T, secure *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, listener, secure, http.HandlerFunc(func(http.ResponseWriter,
			*http.Request) {
		}), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// TestOtherHosts: a page on loopback answers requests for this machine alone, so that no web page
// reads it through a browser by a host name of its own.
func TestOtherHosts(t *testing.T) {
	address := serve(t, nil)
	_, port, _ := net.SplitHostPort(address)
	for host, want := range map[string]int{
		address: http.StatusOK, "localhost:" + port: http.StatusOK, "localhost": http.StatusOK,
		"127.0.0.1": http.StatusOK, "[::1]:" + port: http.StatusOK, "[::1]": http.StatusOK,
		"rebound.example:" + port:   http.StatusMisdirectedRequest,
		"localhost.example:" + port: http.StatusMisdirectedRequest,
		"127.0.0.1.example":         http.StatusMisdirectedRequest,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("host %q: %s, want %d", host, answer.Status, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestIdleConnectionsKeepNoProbeOut: a probe is answered although more connections than the page
// allows are open and say nothing.
func TestIdleConnectionsKeepNoProbeOut(t *testing.T) {
	address := serve(t, nil)
	for range OpenLimit + 20 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	client := &http.Client{Timeout: headerTimeout / 2, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Error(answer.Status)
	}
}
