//go:build cuda

package driver

// #include <stdlib.h>
// #include "nccl.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"
)

// The results of NCCL that are no errors.
const (
	ncclSuccess    = 0
	ncclInProgress = 7
)

// oldestNCCL is the first version in which a group of a process with several threads may be left
// while it sums: before, ncclCommAbort can hang (NVIDIA/nccl, issue 992).
const oldestNCCL = 21901

// abortPatience is how long an abort may take before the device counts as hanging.
const abortPatience = 30 * time.Second

// NCCLError is an error returned by a function of NCCL.
type NCCLError struct {
	Code int
	Text string
}

func (e *NCCLError) Error() string { return fmt.Sprintf("%s (NCCL's error %d)", e.Text, e.Code) }

// NCCL is NVIDIA's library that sums between GPUs.
type NCCL struct {
	library *C.struct_rondo_nccl
	version int
	// AbortPatience is how long Left waits for an abort; for tests to be shorter.
	AbortPatience time.Duration
}

// OpenNCCL opens the first NCCL 2 that is new enough. Without one its error says why the first was
// not.
func OpenNCCL() (*NCCL, error) {
	const file = "libnccl.so.2"
	var first error
	for _, folder := range libraryFolders(file) {
		n, err := openNCCL(folder + file)
		if err == nil {
			return n, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func openNCCL(file string) (*NCCL, error) {
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	n := &NCCL{library: C.rondo_nccl_open(name, &why[0], C.size_t(len(why))),
		AbortPatience: abortPatience}
	if n.library == nil {
		return nil, errors.New(C.GoString(&why[0]))
	}
	var version C.int
	err := n.result(C.rondo_nccl_version(n.library, &version))
	if n.version = int(version); err == nil && n.version < oldestNCCL {
		err = fmt.Errorf("it is NCCL %s, and must be 2.19.1 or newer", n.Version())
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// Close frees NCCL's handle; the library stays loaded. No Abort may be running.
func (n *NCCL) Close() {
	C.rondo_nccl_free(n.library)
	n.library = nil
}

// Version is NCCL's: "2.23.4".
func (n *NCCL) Version() string {
	v := n.version
	if v < 10000 { // the numbering until 2.8
		return fmt.Sprintf("%d.%d.%d", v/1000, v%1000/100, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
}

// Library is the file that it was opened from.
func (n *NCCL) Library() string { return C.GoString(C.rondo_nccl_path(n.library)) }

func (n *NCCL) result(code C.int) error {
	if code == ncclSuccess || code == ncclInProgress {
		return nil
	}
	return &NCCLError{Code: int(code), Text: C.GoString(C.rondo_nccl_text(n.library, code))}
}

// NewID makes the name of a group, and opens the port at which its members will ask for each other.
func (n *NCCL) NewID() ([]byte, error) {
	id := make([]byte, C.RONDO_NCCL_ID_BYTES)
	err := n.result(C.rondo_nccl_new_id(n.library, unsafe.Pointer(unsafe.SliceData(id))))
	if err != nil {
		return nil, fmt.Errorf("ncclGetUniqueId: %w", err)
	}
	return id, nil
}

// Comm is a place in a group. Abort may be called by any goroutine at any time.
type Comm struct {
	nccl    *NCCL
	context *Context
	mu      sync.Mutex
	comm    *C.struct_rondo_comm // nil after Abort
	aborted chan struct{}        // closed when Abort has come to its end
	failed  error                // the result, once it has ended
}

// errAborted is that a group has been left.
var errAborted = errors.New("the group was left")

// Join begins to join a group with the context's device. Settle waits until all have.
func (c *Context) Join(n *NCCL, id []byte, rank, world int) (*Comm, error) {
	if len(id) != C.RONDO_NCCL_ID_BYTES {
		return nil, fmt.Errorf("a group's name of %d bytes: want %d", len(id),
			C.RONDO_NCCL_ID_BYTES)
	}
	g := &Comm{nccl: n, context: c, aborted: make(chan struct{})}
	g.comm = (*C.struct_rondo_comm)(C.calloc(1, C.sizeof_struct_rondo_comm)) // cgo panics on null
	g.comm.nccl = n.library
	err := g.call("ncclCommInitRankConfig", func() C.int {
		return C.rondo_comm_join(g.comm, unsafe.Pointer(unsafe.SliceData(id)), C.int(rank),
			C.int(world))
	})
	if err != nil {
		g.Abort()
		return nil, errors.Join(err, g.Left())
	}
	return g, nil
}

// call runs a function of NCCL with the group, unless that was left.
func (g *Comm) call(name string, f func() C.int) error {
	return g.context.do(name, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.comm == nil {
			return errAborted
		}
		return g.nccl.result(f())
	})
}

// Sum enqueues the sum of n floats over the group, in place. Settle returns its error.
func (g *Comm) Sum(s *Stream, at unsafe.Pointer, n int) error {
	return g.call("ncclAllReduce", func() C.int {
		return C.rondo_comm_sum(g.comm, unsafe.Pointer(s.c()), C.size_t(uintptr(at)), C.size_t(n))
	})
}

// settlePause is the pause between two looks at NCCL's background work.
const settlePause = 200 * time.Microsecond

// Settle waits until the operation that was begun is done, enqueued or failed. It fails after an
// Abort, and when an enqueued operation has failed since.
func (g *Comm) Settle(ctx context.Context) error {
	for {
		var state C.int
		err := g.call("ncclCommGetAsyncError", func() C.int {
			state = C.rondo_comm_state(g.comm)
			return state
		})
		if err != nil || state != ncclInProgress {
			return err
		}
		pause := time.NewTimer(settlePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

// Abort starts to leave the group: its operations end, on the device too, as if they were done. It
// does not wait; Left does.
func (g *Comm) Abort() {
	g.mu.Lock()
	comm := g.comm
	g.comm = nil
	g.mu.Unlock()
	if comm == nil {
		return
	}
	go func() { // an abort that hangs keeps it, as a wait that hangs keeps the context's
		defer close(g.aborted)
		g.failed = g.context.do("ncclCommAbort", func() error {
			return g.nccl.result(C.rondo_comm_abort(comm))
		})
		C.free(unsafe.Pointer(comm))
	}()
}

// Left waits for the end of an Abort, or gives up. Then the device hangs: NCCL's operation there
// may never end, and neither may any later wait in this context.
func (g *Comm) Left() error {
	c := g.context
	if c.hung != nil {
		return c.hung
	}
	late := time.NewTimer(g.nccl.AbortPatience)
	defer late.Stop()
	select {
	case <-g.aborted:
		return g.failed
	case <-late.C:
		c.hung = fmt.Errorf("ncclCommAbort: %w in %v", errHung, g.nccl.AbortPatience)
		return c.hung
	}
}
