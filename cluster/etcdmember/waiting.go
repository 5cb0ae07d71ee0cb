package etcdmember

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// readTimeout bounds how long a caller may take to ask.
const readTimeout = 5 * time.Second

// waiting answers for a member whose disk is empty, in etcd's place, until etcd is started: the
// others must know that it has nothing. Whatever else is asked is unavailable, and not "not found":
// that is what etcd's leader says of a lease that has ended, and the others take a member for the
// leader until its silence was long enough.
type waiting struct {
	server *http.Server
	served chan struct{} // closed when nothing is served any more
}

func (m *Member) listenWaiting() (*waiting, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(m.cfg.Listen, m.port))
	if err != nil {
		return nil, fmt.Errorf("the port of the member's entry in --peers: %w", err)
	}
	if m.certs != nil {
		listener = tls.NewListener(listener, m.certs.Server())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this member has no data yet", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("GET "+emptyPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(clusterHeader, m.self.founders.cluster.String())
		_ = json.NewEncoder(w).Encode(m.word())
	})
	return serveHTTP(listener, mux), nil
}

func serveHTTP(listener net.Listener, handler http.Handler) *waiting {
	w := &waiting{served: make(chan struct{}), server: &http.Server{
		Handler: handler, ReadHeaderTimeout: readTimeout, ErrorLog: silent()}}
	go func() {
		defer close(w.served)
		_ = w.server.Serve(listener) // until it is closed
	}()
	return w
}

// close frees the port.
func (w *waiting) close() {
	if w == nil {
		return
	}
	_ = w.server.Close()
	<-w.served
}
