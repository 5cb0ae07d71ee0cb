package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Limits of a tunnel.
const (
	tunnelConns   = 32               // connections at once; who wants one more waits
	tunnelDial    = 30 * time.Second // to open one, whatever the caller's context says
	outsideDial   = 5 * time.Second  // to open one that needs no tunnel
	tunnelGoodbye = 2 * time.Second  // for the last bytes of a connection, and why it has ended
	reasonBytes   = 4 << 10          // of what a node says about a connection that failed
)

// errTunnelClosed is the error of connections whose tunnel has been closed.
var errTunnelClosed = errors.New("the tunnel into the cluster is closed")

// A Tunnel opens connections to pods through the API server, so that a command on a person's
// machine reaches etcd and the coordinator under the addresses that hold within the cluster. The
// person needs the right to create pods/portforward there.
type Tunnel struct {
	cluster *Cluster
	slots   chan struct{}                // one for each connection
	running sync.WaitGroup               // the connections' goroutines
	older   func() (*http.Client, error) // of the upgrade to SPDY

	mu     sync.Mutex
	open   map[*tunnelConn]bool
	closed bool
}

// NewTunnel returns a tunnel into the cluster's namespace. It opens nothing yet.
func NewTunnel(c *Cluster) *Tunnel {
	return &Tunnel{cluster: c, slots: make(chan struct{}, tunnelConns),
		older: sync.OnceValues(c.upgrading), open: make(map[*tunnelConn]bool)}
}

// Dial connects to host:port as a pod would: host is the IP of a pod, POD.SERVICE of a headless
// Service, or the name of a Service, which is any ready pod behind it. Another address is not the
// cluster's and is dialled over the network. Where the pod refuses the connection, the first Read
// says so.
func (t *Tunnel) Dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelDial)
	defer cancel()
	to, err := t.cluster.resolve(ctx, address)
	if errors.Is(err, errNotOfCluster) {
		conn, network := (&net.Dialer{Timeout: outsideDial}).DialContext(ctx, "tcp", address)
		if network != nil {
			return nil, fmt.Errorf("%s: %w in namespace %s, and over the network: %w", address, err,
				t.cluster.Namespace, network)
		}
		return conn, nil
	}
	if err != nil {
		return nil, err
	}
	return t.dial(ctx, to)
}

// DialPod connects to a port of a pod of the cluster's namespace.
func (t *Tunnel) DialPod(ctx context.Context, pod string, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelDial)
	defer cancel()
	return t.dial(ctx, podPort{namespace: t.cluster.Namespace, pod: pod, port: port})
}

func (t *Tunnel) dial(ctx context.Context, to podPort) (net.Conn, error) {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: all %d connections of the tunnel are in use: %w", to,
			tunnelConns, ctx.Err())
	}
	conn, err := t.connect(ctx, to)
	if err != nil {
		<-t.slots
		return nil, Explain(err, fmt.Sprintf("connecting to %s", to))
	}
	return conn, nil
}

// connect opens a connection for which there is a slot.
func (t *Tunnel) connect(ctx context.Context, to podPort) (net.Conn, error) {
	link, err := t.openLink(ctx, to)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	c := &tunnelConn{Conn: near, far: far, to: to, link: link, ended: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		link.cut()
		return nil, errTunnelClosed
	}
	t.open[c] = true
	t.running.Go(func() {
		c.run()
		t.mu.Lock()
		delete(t.open, c)
		t.mu.Unlock()
		<-t.slots
	})
	return c, nil
}

// Close ends all connections, and waits until nothing of them is left.
func (t *Tunnel) Close() {
	t.mu.Lock()
	t.closed = true
	for c := range t.open {
		c.end(errTunnelClosed)
		c.link.cut()
	}
	t.mu.Unlock()
	t.running.Wait()
}

// A tunnelConn is a TCP connection of a pod as it looks from here: the near half of a pipe, which
// has the deadlines that gRPC sets and the API server's streams do not have.
type tunnelConn struct {
	net.Conn
	far  net.Conn // the other half
	to   podPort
	link *podLink

	once  sync.Once
	ended chan struct{} // cause is set
	cause error         // of the end; io.EOF: one of the sides has closed the connection
}

// end says why the connection has ended, unless somebody has; what was read is still delivered.
func (c *tunnelConn) end(cause error) {
	c.once.Do(func() {
		c.cause = cause
		close(c.ended)
		_ = c.far.Close()
	})
}

// run copies both ways until one side has closed, and takes the connection down.
func (c *tunnelConn) run() {
	var running sync.WaitGroup
	why := make(chan string, 1)
	running.Go(func() {
		text, _ := io.ReadAll(io.LimitReader(c.link.reasons, reasonBytes))
		why <- string(text)
	})
	running.Go(func() {
		_, _ = io.Copy(c.far, c.link.data) // the end of a stream does not say why: ask
		c.end(c.reason(why))
	})
	running.Go(func() {
		_, _ = io.Copy(c.link.data, c.far)
		_ = c.link.data.Close() // the pod reads to here
		c.end(io.EOF)
	})
	<-c.ended
	c.link.close()
	running.Wait()
}

// reason is what the pod's node has said about the end of the connection.
func (c *tunnelConn) reason(why <-chan string) error {
	patience := time.NewTimer(tunnelGoodbye)
	defer patience.Stop()
	select {
	case text := <-why:
		if text != "" {
			return fmt.Errorf("%s: %s", c.to, inShort(text))
		}
	case <-patience.C:
	case <-c.ended: // of itself
	}
	return io.EOF
}

// inShort says in a few words why a node could not connect to a port of a pod.
func inShort(text string) string {
	for _, known := range []struct{ part, short string }{
		{"connection refused", "connection refused: nothing listens there (yet)"},
		{"sandbox is not running", "the pod is not running any more"},
		{"network namespace", "the pod is not running any more"},
		{"connection reset", "connection reset"},
		{"broken pipe", "connection reset"},
	} {
		if strings.Contains(text, known.part) {
			return known.short
		}
	}
	words := strings.Join(strings.Fields(text), " ")
	if len(words) > maxValueShown {
		words = words[:maxValueShown] + "…"
	}
	return words
}

// Read returns why the connection has ended once all was read that came before.
func (c *tunnelConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.say(err)
}

func (c *tunnelConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.say(err)
}

// say puts why the connection has ended in place of what a pipe says.
func (c *tunnelConn) say(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-c.ended:
		if !errors.Is(c.cause, io.EOF) {
			return c.cause
		}
	default:
	}
	if errors.Is(err, io.ErrClosedPipe) {
		return net.ErrClosed
	}
	return err
}

// Close lets the pod have what was written, for a moment at most.
func (c *tunnelConn) Close() error {
	time.AfterFunc(tunnelGoodbye, c.link.cut)
	return c.Conn.Close()
}

func (c *tunnelConn) RemoteAddr() net.Addr { return c.to }
