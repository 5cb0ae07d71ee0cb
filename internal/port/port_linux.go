package port

import (
	"fmt"
	"os"
	"syscall"
)

func reserve() (*Port, error) {
	// A socket of both families reserves the port in both. A machine may lack IPv6.
	fd, err := bindAny(syscall.AF_INET6, &syscall.SockaddrInet6{})
	if err != nil {
		fd, err = bindAny(syscall.AF_INET, &syscall.SockaddrInet4{})
	}
	if err != nil {
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	p := &Port{close: func() error { return syscall.Close(fd) }}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("reserving a port: %w", os.NewSyscallError("getsockname", err))
	}
	switch name := name.(type) {
	case *syscall.SockaddrInet6:
		p.number = name.Port
	case *syscall.SockaddrInet4:
		p.number = name.Port
	}
	return p, nil
}

// bindAny binds a new socket to a free port on all addresses.
func bindAny(family int, anywhere syscall.Sockaddr) (int, error) {
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	if family == syscall.AF_INET6 {
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = os.NewSyscallError("bind", syscall.Bind(fd, anywhere))
	}
	if err != nil {
		_ = syscall.Close(fd)
		return 0, err
	}
	return fd, nil
}
