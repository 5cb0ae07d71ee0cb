package etcdmember

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
)

func silent() *log.Logger { return log.New(io.Discard, "", 0) }

// health serves etcd's /health, /livez, /readyz and /metrics. Without a running etcd it answers
// that the process is alive but not ready, with the reason.
type health struct {
	server *placeholder

	mu   sync.Mutex
	etcd http.Handler // nil: not started
	why  string
}

func (m *Member) openHealth() (*health, error) {
	listener, err := net.Listen("tcp", m.cfg.Health)
	if err != nil {
		return nil, fmt.Errorf("--health: %w", err)
	}
	h := &health{why: "starting"}
	h.server = serveHTTP(listener, h)
	return h, nil
}

func (h *health) close() { h.server.close() }

// set makes h answer for a server, or with the reason why there is none.
func (h *health) set(server *embed.Etcd, why string) {
	var handler *http.ServeMux
	if server != nil {
		handler = http.NewServeMux()
		etcdhttp.HandleMetrics(handler)
		etcdhttp.HandleHealth(server.GetLogger(), handler, server.Server)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.etcd, h.why = nil, why
	if handler != nil {
		h.etcd = handler
	}
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	etcd, why := h.etcd, h.why
	h.mu.Unlock()
	switch {
	case etcd != nil:
		etcd.ServeHTTP(w, r)
	case r.URL.Path == "/livez" || r.URL.Query().Get("serializable") == "true":
		_, _ = fmt.Fprintln(w, "waiting: "+why)
	default:
		http.Error(w, why, http.StatusServiceUnavailable)
	}
}
