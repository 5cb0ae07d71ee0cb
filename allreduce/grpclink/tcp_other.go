//go:build !linux

package grpclink

import (
	"net"
	"time"
)

// Unpace does nothing on this system.
func Unpace(net.Conn) {}

// giveUpAfter does nothing on this system.
func giveUpAfter(net.Conn, time.Duration) {}
