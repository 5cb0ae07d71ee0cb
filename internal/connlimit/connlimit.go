// Package connlimit bounds a listener's open connections. A new connection takes the place of the
// oldest one that serves nobody, so idle strangers keep nobody out. It knows no protocol and
// imports nothing of this module.
package connlimit

import (
	"net"
	"sync"
)

// Listener closes connections above a limit.
type Listener struct {
	net.Listener
	most func() int

	mu    sync.Mutex
	open  map[string]*conn // by remote address
	first *conn            // of those that serve nobody, the oldest; a circle
}

// conn is an open connection. Those that serve nobody are a circle in the order of their arrival.
type conn struct {
	net.Conn
	of         *Listener
	uses       int
	prev, next *conn
}

// New returns a listener with at most most() open connections, which is asked at each new one. Its
// remote addresses must be unique, as those of TCP are.
func New(l net.Listener, most func() int) *Listener {
	return &Listener{Listener: l, most: most, open: map[string]*conn{}}
}

// Accept waits for a connection for which there is room.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, of: l}
		if refused := l.admit(c); refused != nil {
			_ = refused.Conn.Close()
			if refused == c {
				continue
			}
		}
		return c, nil
	}
}

// admit adds a connection, and returns the one to close for it.
func (l *Listener) admit(c *conn) (refused *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c.RemoteAddr().String()] = c
	l.append(c)
	if len(l.open) <= l.most() {
		return nil
	}
	refused = l.first
	l.forget(refused)
	return refused
}

// Keep marks the connection from an address as one that serves somebody, until release is called.
func (l *Listener) Keep(remote net.Addr) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.open[remote.String()]
	if c == nil {
		return func() {}
	}
	if c.uses++; c.uses == 1 {
		l.remove(c)
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.uses--; c.uses == 0 && l.open[remote.String()] == c {
			l.append(c)
		}
	})
}

// append adds a connection that serves nobody at the end of the circle.
func (l *Listener) append(c *conn) {
	if l.first == nil {
		l.first, c.prev, c.next = c, c, c
		return
	}
	c.prev, c.next = l.first.prev, l.first
	c.prev.next, c.next.prev = c, c
}

// remove takes a connection out of the circle.
func (l *Listener) remove(c *conn) {
	if c.next == c {
		l.first = nil
	} else if l.first == c {
		l.first = c.next
	}
	c.prev.next, c.next.prev = c.next, c.prev
	c.prev, c.next = nil, nil
}

// forget removes a connection that is being closed.
func (l *Listener) forget(c *conn) {
	if l.open[c.RemoteAddr().String()] != c {
		return
	}
	delete(l.open, c.RemoteAddr().String())
	if c.uses == 0 {
		l.remove(c)
	}
}

// Close closes the connection and makes room for another.
func (c *conn) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// NetConn returns the connection beneath, for its socket's options.
func (c *conn) NetConn() net.Conn { return c.Conn }
