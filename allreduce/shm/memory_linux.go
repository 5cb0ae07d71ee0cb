package shm

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

const supported = true

// seals forbids the other end to shrink the file under a mapping. Reading past its end would kill
// the process (SIGBUS).
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// create returns the descriptor of size bytes of new, sealed memory. All its pages are allocated,
// so a lack of memory is an error here and not a signal later.
func create(size int) (int, error) {
	fd, err := unix.MemfdCreate("rondo-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	// In most versions of Linux, signals interrupt only this call of those here.
	err = uninterrupted(func() error { return unix.Fallocate(fd, 0, 0, int64(size)) })
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%d bytes of shared memory: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("sealing shared memory: %w", err)
	}
	return fd, nil
}

// uninterrupted repeats a system call while signals interrupt it. The Go runtime sends signals to
// preempt goroutines.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func check(fd, size int) ([]byte, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("its descriptor has no seals: %w", err)
	}
	if got&seals != seals {
		return nil, fmt.Errorf("it has seals %#x, want %#x", got, seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if stat.Size != int64(size) {
		return nil, fmt.Errorf("it has %d bytes, want %d", stat.Size, size)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping it: %w", err)
	}
	return memory, nil
}

func unmap(memory []byte) {
	if err := unix.Munmap(memory); err != nil {
		panic(fmt.Sprintf("shm: %d bytes were not mapped: %v", len(memory), err))
	}
}

// release closes a descriptor of this process. The memory stays while it is mapped.
func release(fd int) { _ = unix.Close(fd) }

// CheckUser returns an error unless the connected process runs as this process's user.
func CheckUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if peerErr != nil {
		return peerErr
	}
	if self := unix.Geteuid(); int(peer.Uid) != self {
		return fmt.Errorf("it runs as user %d, this process as user %d", peer.Uid, self)
	}
	return nil
}

func send(conn *net.UnixConn, b []byte, fd int) error {
	_, _, err := conn.WriteMsgUnix(b, unix.UnixRights(fd), nil)
	return err
}

// receive fills b, and returns the one descriptor that came with it.
func receive(conn *net.UnixConn, b []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := conn.ReadMsgUnix(b, control)
	if n == 0 && errors.Is(err, io.EOF) {
		err = errors.New("the other end has hung up")
	}
	if err != nil {
		return -1, err
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(control[:m])
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if err == nil && n == len(b) && len(fds) == 1 && flags&unix.MSG_CTRUNC == 0 {
		return fds[0], nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return -1, fmt.Errorf("%d bytes and %d descriptors came, want %d and 1", n, len(fds), len(b))
}
