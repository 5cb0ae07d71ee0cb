package cpu

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O3 -Wall -pthread
#include <stdlib.h>
#include <string.h>
#include "kernels/flat.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"rondo/compute"
	_ "rondo/compute/cpu/kernels" // the C code
)

// block is C memory.
type block struct{ memory unsafe.Pointer }

func (b block) release() { C.free(b.memory) }

// allocate returns n zeros on a 64-byte boundary.
func allocate(n int) ([]float32, block) {
	size := C.size_t(n) * 4
	p := C.rondo_allocate(size)
	if p == nil {
		panic(&compute.MemoryError{What: fmt.Sprintf("a tensor of %d elements", n),
			Bytes: 4 * int64(n)})
	}
	C.memset(p, 0, size)
	return unsafe.Slice((*float32)(p), n), block{p}
}

// native computes in C, on a team of threads.
type native struct {
	kernels *C.struct_kernels
	team    *C.struct_team // nil with one thread, the caller's
	most    int            // limit of setThreads
	space   C.struct_space // gemm's workspace
}

func newBackend(threads int, precision compute.Precision, isa string) (backend, error) {
	k := kernels(isa, precision)
	if k == nil {
		return nil, refusal(precision, isa)
	}
	b := &native{kernels: k, most: threads}
	if threads > 1 {
		if b.team = C.rondo_team_new(C.int(threads)); b.team == nil {
			return nil, fmt.Errorf("cpu: this machine cannot start %d threads: lower --threads",
				threads)
		}
	}
	return b, nil
}

func (n *native) close() {
	C.rondo_team_free(n.team)
	n.team = nil
	C.rondo_space_free(&n.space) //nolint:gocritic // what it sees is cgo's
}

func (n *native) name() string {
	return C.GoString(C.rondo_name(n.kernels))
}

func (n *native) threads() int { return int(C.rondo_team_size(n.team)) }

func (n *native) bytes() int64 { return int64(n.space.bytes) }

// kernels are an instruction set's, or nil.
func kernels(isa string, p compute.Precision) *C.struct_kernels {
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	return C.rondo_kernels(name, flag(p == compute.BF16))
}

// refusal says why there are no kernels.
func refusal(p compute.Precision, isa string) error {
	what := "is no instruction set"
	if slices.Contains(isaNames(), isa) {
		what = "is not one of this processor's"
	}
	here := slices.DeleteFunc(isaNames(), func(name string) bool { return kernels(name, p) == nil })
	return fmt.Errorf("cpu: %s=%s %s: give %s, or unset it for the best", isaEnvironment, isa,
		what, strings.Join(here, ", "))
}

// floats points to a slice's first element, or is null.
func floats(x []float32) *C.float { return (*C.float)(unsafe.SliceData(x)) }

func ints(x []int32) *C.int32_t { return (*C.int32_t)(unsafe.SliceData(x)) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// nativeLayer is a recurrent layer in C.
type nativeLayer struct {
	*native
	work   *C.struct_layer
	cell   compute.Cell
	hidden int
}

// whole is how much memory an allocation of so many bytes takes.
func whole(bytes int64) int64 { return int64(C.rondo_whole(C.size_t(bytes))) }

// layout is what the C kernels' workspaces are laid out by.
func (c Config) layout() *C.struct_kernels {
	return &C.struct_kernels{bf16: flag(c.Precision == compute.BF16)}
}

// layerBytes is of a layer's workspace, with its input's.
func (c Config) layerBytes(s compute.RecurrentShape, inference bool, in input) int64 {
	var bytes C.size_t
	newLayer(c.layout(), c.Threads, s, inference, in, &bytes)
	return int64(bytes)
}

// headBytes is of an output layer's workspace that keeps so many rows' logits.
func (c Config) headBytes(s compute.OutputShape, rows int) int64 {
	var bytes C.size_t
	newHead(c.layout(), c.Threads, s, rows, &bytes)
	return int64(bytes)
}

// gemmBytes is of the room that general products share.
func (c Config) gemmBytes(_, n, k int) int64 {
	return int64(C.rondo_gemm_bytes(c.layout().bf16, C.long(c.Threads), C.long(n), C.long(k)))
}

// newLayer makes a workspace; with only it makes nothing, and adds its bytes to that.
func newLayer(k *C.struct_kernels, threads int, s compute.RecurrentShape, inference bool,
	in input, only *C.size_t) *C.struct_layer {
	return C.rondo_layer_new(k, C.int(threads), C.int(s.Cell), C.long(s.T), C.long(s.B),
		C.long(s.D), C.long(s.H), C.float(cmp.Or(s.Leak, compute.DefaultLeak)),
		floats(s.UnitPeriods()), flag(inference), C.int(in), only)
}

// newHead is newLayer of an output layer.
func newHead(k *C.struct_kernels, threads int, s compute.OutputShape, rows int,
	only *C.size_t) *C.struct_head {
	return C.rondo_head_new(k, C.int(threads), C.long(s.N), C.long(s.H), C.long(s.V),
		C.long(rows), only)
}

func (n *native) newLayer(s compute.RecurrentShape, inference bool) layer {
	w := newLayer(n.kernels, n.most, s, inference, noInput, nil)
	if w == nil {
		rows := int64(s.Cell.Gates()) * int64(s.H)
		panic(&compute.MemoryError{What: fmt.Sprintf("a recurrent layer of shape %+v", s),
			Bytes: rows * (4*int64(s.T)*int64(s.B) + 2*int64(s.H))}) // gates, and W_hh in bf16
	}
	return &nativeLayer{native: n, work: w, cell: s.Cell, hidden: s.H}
}

func (l *nativeLayer) forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	ok := C.rondo_layer_forward(l.kernels, l.team, l.work, floats(w.IH), floats(w.HH),
		floats(w.BiasIH), floats(w.BiasHH), floats(w.Peephole), ints(in.IDs), floats(in.X),
		ints(in.Lengths), floats(state.H), floats(state.C), floats(y), floats(out.H),
		floats(out.C))
	if ok == 0 {
		panic(&compute.MemoryError{What: fmt.Sprintf("the input of a recurrent layer, %d ids or "+
			"%d elements, and its weights, %d elements", len(in.IDs), len(in.X), len(w.IH)),
			Bytes: 2 * int64(len(w.IH)+len(in.X))})
	}
}

func (l *nativeLayer) backward(w compute.RecurrentWeights, in compute.RecurrentInput,
	dy []float32, dout compute.RecurrentState, dw compute.RecurrentWeights, dx []float32,
	dstate compute.RecurrentState, finished func(tensors, rows int)) {
	run := func(parts C.int) {
		C.rondo_layer_backward(l.kernels, l.team, l.work, parts, floats(w.IH), floats(w.HH),
			ints(in.IDs), ints(in.Lengths), floats(dy), floats(dout.H), floats(dout.C),
			floats(dw.IH), floats(dw.HH), floats(dw.BiasIH), floats(dw.BiasHH),
			floats(dw.Peephole), floats(dx), floats(dstate.H), floats(dstate.C))
	}
	if finished == nil {
		run(C.BACK_ALL)
		return
	}
	run(C.BACK_RECURRENCE | C.BACK_INPUT_WEIGHTS)
	finished(1, 0)
	even := C.rondo_layer_gates_even(l.team, l.work) != 0
	if !even {
		run(C.BACK_HIDDEN_WEIGHTS)
	}
	for g := range l.cell.HiddenGates() {
		if g > 0 {
			finished(1, g*l.hidden)
		}
		if even {
			run(C.BACK_HIDDEN_GATE << g)
		}
	}
	run(C.BACK_BIASES)
	finished(l.cell.Tensors(), 0)
	if dx != nil {
		run(C.BACK_INPUT)
	}
}

func (l *nativeLayer) keep() { C.rondo_layer_keep(l.work) }

func (l *nativeLayer) close() {
	if l.work == nil {
		return
	}
	C.rondo_layer_free(l.work)
	l.work = nil
}

// nativeHead is an output layer in C.
type nativeHead struct {
	*native
	work      *C.struct_head
	smoothing float32
}

func (n *native) newHead(s compute.OutputShape, rows int) head {
	w := newHead(n.kernels, n.most, s, rows, nil)
	if w == nil {
		panic(&compute.MemoryError{What: fmt.Sprintf("an output layer of shape %+v", s),
			Bytes: 4 * int64(rows) * int64(s.V)})
	}
	return &nativeHead{native: n, work: w, smoothing: s.Smoothing}
}

func (h *nativeHead) forward(x, w, b []float32, targets []int32) float64 {
	return h.run(x, w, b, targets, 1, 0, nil, nil, nil)
}

func (h *nativeHead) forwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) float64 {
	return h.run(x, w, b, targets, scale, h.smoothing, dx, dw, db)
}

func (h *nativeHead) run(x, w, b []float32, targets []int32, scale, smoothing float32,
	dx, dw, db []float32) float64 {
	return float64(C.rondo_head_run(h.kernels, h.team, h.work, C.long(len(targets)), floats(x),
		floats(w), floats(b), ints(targets), C.float(scale), C.float(smoothing), floats(dx),
		floats(dw), floats(db)))
}

func (h *nativeHead) close() {
	C.free(unsafe.Pointer(h.work))
	h.work = nil
}
