//go:build !linux

package grpclink

import "net"

// Unpace does nothing on this system.
func Unpace(net.Conn) {}
