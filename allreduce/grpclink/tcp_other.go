//go:build !linux

package grpclink

import (
	"net"
	"time"
)

// Unpace does nothing on this system.
func Unpace(net.Conn) {}

// bound does nothing on this system.
func bound(net.Conn, time.Duration, int) {}
