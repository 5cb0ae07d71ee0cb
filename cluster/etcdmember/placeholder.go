package etcdmember

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// readTimeout limits a caller's request header.
const readTimeout = 5 * time.Second

// placeholder answers in etcd's place for a member with an empty disk, until etcd starts. It tells
// the others that the disk is empty. All other requests are unavailable rather than not found:
// etcd's leader answers "not found" for a lease that has ended, and the others may take this member
// for the leader until it was silent for long enough.
type placeholder struct {
	server *http.Server
	served chan struct{} // closed when the server has ended
}

func (m *Member) listenPlaceholder() (*placeholder, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(m.cfg.Listen, m.port))
	if err != nil {
		return nil, fmt.Errorf("the port of the member's entry in --peers: %w", err)
	}
	if m.peer != nil {
		listener = tls.NewListener(listener, m.peer.Server())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this member has no data yet", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET "+emptyPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(clusterHeader, m.self.founders.cluster.String())
		_ = json.NewEncoder(w).Encode(m.emptyAnswer())
	})
	return serveHTTP(listener, mux), nil
}

func serveHTTP(listener net.Listener, handler http.Handler) *placeholder {
	w := &placeholder{served: make(chan struct{}), server: &http.Server{
		Handler: handler, ReadHeaderTimeout: readTimeout, ErrorLog: silent()}}
	go func() {
		defer close(w.served)
		_ = w.server.Serve(listener) // until it is closed
	}()
	return w
}

func (w *placeholder) close() {
	if w == nil {
		return
	}
	_ = w.server.Close()
	<-w.served
}
