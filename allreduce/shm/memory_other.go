//go:build !linux

package shm

import (
	"errors"
	"net"
)

const supported = false

// Nothing below is called: NewOffer and Take fail first.

func create(int) (int, error) { return -1, errors.ErrUnsupported }

func check(int, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmap([]byte) {}

func release(int) {}

// CheckUser refuses every connection: this system does not name the peer's user.
func CheckUser(*net.UnixConn) error { return errors.ErrUnsupported }

func send(*net.UnixConn, []byte, int) error { return errors.ErrUnsupported }

func receive(*net.UnixConn, []byte) (int, error) { return -1, errors.ErrUnsupported }
