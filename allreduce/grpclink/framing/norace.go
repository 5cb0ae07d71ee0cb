//go:build !race

package framing

import (
	"io"
	"net"
)

const raceDetector = false

func visible(conn net.Conn) io.Writer { return conn }
