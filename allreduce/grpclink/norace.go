//go:build !race

package grpclink

import (
	"io"
	"net"
)

const raceDetector = false

func visible(conn net.Conn) io.Writer { return conn }
