package meet

import (
	"net"
	"strconv"
	"testing"

	"rondo/internal/port"
)

// TestOpenWithoutAHost: a chosen port is open on every address, as port forwarding into a pod
// needs, and others learn one address. Port 0 is open on that address only.
func TestOpenWithoutAHost(t *testing.T) {
	chosen := strconv.Itoa(port.ForTest(t).Number())
	const outward = "127.0.0.2" // the local address towards this etcd
	for listen, reached := range map[string]bool{":" + chosen: true, ":0": false} {
		listener, err := Config{Etcd: []string{outward + ":2379"}, Listen: listen,
			Insecure: true}.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		host, open, _ := net.SplitHostPort(listener.Addr().String())
		if host != "127.0.0.1" && host != outward || open == "0" {
			t.Errorf("--listen %s is known as %s", listen, listener.Addr())
		}
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.3", open))
		if (err == nil) != reached {
			t.Errorf("--listen %s: reached on another address: %v", listen, err)
		}
		if err == nil {
			_ = conn.Close()
		}
		_ = listener.Close()
	}
}
