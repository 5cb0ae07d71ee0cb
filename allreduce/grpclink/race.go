//go:build race

package grpclink

import (
	"io"
	"net"
)

// The race detector takes it that what was done before a write has happened before what is done
// after a read, but knows no writev, and has a write's bytes read when it has returned. By then the
// ring may have heard that they have arrived, and have put others in their place. So under it a
// copy is written, by Write.
const raceDetector = true

// visible is the connection without its writev.
func visible(conn net.Conn) io.Writer { return struct{ io.Writer }{conn} }
