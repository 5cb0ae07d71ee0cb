package etcdmember

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"rondo/internal/certs"
)

// TestReadyOnceOpen: a member is alive, and not ready, until it lets callers in.
func TestReadyOnceOpen(t *testing.T) {
	t.Parallel()
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.UnsafeNoFsync = t.TempDir(), "panic", true
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = local, local
	c.ListenPeerUrls, c.AdvertisePeerUrls = local, local
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	server, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(deadline):
		t.Fatal("etcd did not start")
	}
	m := &Member{certs: &certs.Identity{}, cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	h := &health{}
	get := func(path string) (int, string) {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code, answer.Body.String()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if m.open(ended, server, h) {
		t.Fatal("opened without users")
	}
	for _, path := range []string{"/health", "/readyz"} {
		if code, body := get(path); code != http.StatusServiceUnavailable ||
			!strings.Contains(body, "users cannot be made yet") {
			t.Errorf("%s before: %d %s", path, code, body)
		}
	}
	if code, body := get("/livez"); code != http.StatusOK {
		t.Errorf("a member without users is not alive: %d %s", code, body)
	}
	if !m.open(t.Context(), server, h) {
		t.Fatal("not opened")
	}
	if code, body := get("/readyz"); code != http.StatusOK {
		t.Errorf("after: %d %s", code, body)
	}
}
