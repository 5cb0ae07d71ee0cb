// Package port reserves TCP ports of this machine, for servers that need their port before they
// start, or that restart on the same port. A server that can report its port should listen on port
// 0 instead. Tests and benchmarks use it.
//
// It imports nothing of this module.
package port

import (
	"errors"
	"net"
	"strconv"
)

// Port is a reserved port.
type Port struct {
	number int
	close  func() error
}

// Reserve reserves a free port until Close. Connections to it are refused until a server listens.
// On systems other than Linux the error is errors.ErrUnsupported.
//
// It binds a socket with SO_REUSEADDR to the port on every address, and never listens. Linux gives
// such a port neither to a socket that asks for any port nor to an outgoing connection. One server
// at a time may listen on it if it uses SO_REUSEADDR, as Go's and most others do.
func Reserve() (*Port, error) { return reserve() }

// Number returns the port number.
func (p *Port) Number() int { return p.number }

// Address returns the port as host:port on loopback.
func (p *Port) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)) }

// Close releases the port.
func (p *Port) Close() error { return p.close() }

// test is the part of testing.TB that this package uses.
type test interface {
	Helper()
	Cleanup(func())
	Skip(...any)
	Fatal(...any)
}

// ForTest reserves a port until a test ends. It skips the test on systems without support.
func ForTest(t test) *Port {
	t.Helper()
	p, err := Reserve()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}
