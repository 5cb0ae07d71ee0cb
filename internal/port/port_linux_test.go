package port

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// TestServersComeAndGo: a reserved port refuses connections; a server may listen on it on any
// address; after its end, even with an open connection, the next server may.
func TestServersComeAndGo(t *testing.T) {
	p := ForTest(t)
	address := p.Address()
	refused := func() {
		t.Helper()
		if conn, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without a server: %v, %v", conn, err)
		}
	}
	refused()
	_, number, _ := net.SplitHostPort(address)
	for _, at := range []string{address, ":" + number, address} {
		server, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := net.Listen("tcp", at); err == nil {
			t.Errorf("a second server listens at %s beside the first", second.Addr())
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		served, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if err := errors.Join(served.Close(), server.Close()); err != nil {
			t.Fatal(err)
		}
		refused()
	}
}

// TestNobodyElseGetsIt: when all other ports are taken, neither a server on any port nor an
// outgoing connection gets the reserved port.
func TestNobodyElseGetsIt(t *testing.T) {
	narrow(t)
	p, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	server, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		if other, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
			t.Errorf("a server got %v; %s is reserved", other.Addr(), p.Address())
			_ = other.Close()
		}
	}
	_, number, _ := net.SplitHostPort(server.Addr().String())
	if conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", number)); err == nil {
		t.Errorf("a connection left from %v; %s is reserved", conn.LocalAddr(), p.Address())
		_ = conn.Close()
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	_ = other.Close()
}

// narrow gives the test its own network namespace with only two ephemeral ports.
func narrow(t *testing.T) {
	t.Helper()
	// The thread stays locked, so that it and its namespace end with the test's goroutine.
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Skip("no network namespace: ", err)
	}
	if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
		t.Skip("ip link: ", err)
	}
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	if err := os.WriteFile(ports, []byte("40000 40001"), 0o600); err != nil {
		t.Skip(err)
	}
}
