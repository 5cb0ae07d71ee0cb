// Package port reserves TCP ports of this machine, for servers that must be told their port before
// they start, or that come back at the same one. Servers that can say which port they got listen
// on port 0 instead. Tests and benchmarks use it.
//
// It imports nothing of ours.
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

// Reserve takes a free port until Close. Until a server listens on it, connections to it are
// refused. The error is errors.ErrUnsupported on systems other than Linux.
//
// A socket is bound to the port on every address with SO_REUSEADDR, and never listens. Linux gives
// such a port neither to another socket that asks for any port nor to an outgoing connection. A
// server that asks for this number with SO_REUSEADDR, as Go's and most others do, may listen, one
// at a time.
func Reserve() (*Port, error) { return reserve() }

// Number returns the port's number.
func (p *Port) Number() int { return p.number }

// Address returns the port as host:port of loopback.
func (p *Port) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number)) }

// Close gives the port back.
func (p *Port) Close() error { return p.close() }

// test is the part of testing.TB that this package needs.
type test interface {
	Helper()
	Cleanup(func())
	Skip(...any)
	Fatal(...any)
}

// ForTest reserves a port until a test ends. It skips the test where no port can be reserved.
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
