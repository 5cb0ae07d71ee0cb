//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"rondo/compute/cuda/driver"
	"rondo/compute/cuda/kernels"
)

// maxArguments bounds the arguments of a kernel.
const maxArguments = 40

// kernelTable finds kernels. A module is loaded when the first of its kernels is launched: a driver
// that has not compiled it before takes a while to.
type kernelTable struct {
	modules []kernelModule
	of      map[string]int // of each kernel, where its module is in modules
	found   map[string]*driver.Kernel
	next    driver.Launch // the launch in progress; reused
	values  [maxArguments]uint64
}

type kernelModule struct {
	kernels.Module
	loaded *driver.Module
}

// newKernelTable lists the kernels for a GPU of this compute capability.
func newKernelTable(major, minor int) (kernelTable, error) {
	k := kernelTable{of: map[string]int{}, found: map[string]*driver.Kernel{}}
	all, err := kernels.PTX(major, minor)
	if err != nil {
		return k, err
	}
	if err := otherKernels(all); err != nil {
		return k, err
	}
	for i, m := range all {
		k.modules = append(k.modules, kernelModule{Module: m})
		for line := range strings.Lines(m.PTX) {
			if rest, ok := strings.CutPrefix(line, ".visible .entry "); ok {
				name, _, _ := strings.Cut(rest, "(")
				k.of[strings.TrimSpace(name)] = i
			}
		}
	}
	return k, nil
}

// kernel finds a kernel by name.
func (q *queue) kernel(name string) *driver.Kernel {
	if k := q.kernels.found[name]; k != nil {
		return k
	}
	i, ok := q.kernels.of[name]
	if !ok {
		panic(fmt.Sprintf("cuda: no module has the kernel %s; is kernels/ptx up to date?", name))
	}
	m := &q.kernels.modules[i]
	if m.loaded == nil {
		loaded, err := q.context.Load(m.PTX)
		q.check("loading the kernels of "+m.Name, err)
		m.loaded = loaded
	}
	k, err := m.loaded.Kernel(name)
	q.check("finding the kernel "+name, err)
	q.kernels.found[name] = k
	return k
}

// close unloads the kernels.
func (k *kernelTable) close() error {
	var failed error
	for i := range k.modules {
		if m := k.modules[i].loaded; m != nil {
			failed = errors.Join(failed, m.Close())
		}
	}
	return failed
}

// launch is how a kernel is launched. A zero in the second or third place of grid and block is 1.
type launch struct {
	grid, block [3]int
	shared      int  // bytes of shared memory a block
	cooperative bool // blocks wait for each other: all must be resident at once
}

// across is a launch of blocks blocks of threads threads.
func across(blocks, threads int) launch {
	return launch{grid: [3]int{blocks, 1, 1}, block: [3]int{threads, 1, 1}}
}

// launch enqueues a kernel. The arguments are the kernel's parameters, in order: addresses as
// unsafe.Pointer or []float32, numbers as int32, uint32, int64, uint64 or float32.
func (q *queue) launch(kernel string, l launch, arguments ...any) {
	if err := q.tryLaunch(kernel, l, arguments...); err != nil {
		q.refused("kernel "+kernel, 0, err)
	}
}

// tryLaunch is launch for callers that have another way.
func (q *queue) tryLaunch(kernel string, l launch, arguments ...any) error {
	k := q.kernel(kernel)
	if l.grid[0] < 1 || l.block[0] < 1 || len(arguments) > maxArguments {
		panic(fmt.Sprintf("cuda: %s: %v blocks of %v threads, %d arguments", kernel, l.grid,
			l.block, len(arguments)))
	}
	t := &q.kernels
	for i, argument := range arguments {
		t.values[i] = bits(kernel, i, argument)
	}
	t.next = driver.Launch{Grid: whole(l.grid), Block: whole(l.block), Shared: l.shared,
		Cooperative: l.cooperative, Values: t.values[:len(arguments)]}
	return q.stream.Launch(k, &t.next)
}

// whole sets the dimensions that were left out to 1.
func whole(extent [3]int) [3]int {
	return [3]int{extent[0], max(extent[1], 1), max(extent[2], 1)}
}

// bits is an argument in the first bytes of eight, as a little-endian machine has it.
func bits(kernel string, i int, argument any) uint64 {
	var value uint64
	p := unsafe.Pointer(&value)
	switch a := argument.(type) {
	case unsafe.Pointer:
		value = uint64(uintptr(a))
	case []float32:
		value = uint64(uintptr(at(a)))
	case int32:
		*(*int32)(p) = a
	case uint32:
		*(*uint32)(p) = a
	case int64:
		*(*int64)(p) = a
	case uint64:
		value = a
	case float32:
		*(*float32)(p) = a
	default:
		panic(fmt.Sprintf("cuda: argument %d of %s has a type that no kernel takes", i, kernel))
	}
	return value
}
