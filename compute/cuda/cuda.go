//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

const (
	ptxEnvironment  = "RONDO_CUDA_PTX"
	blasEnvironment = "RONDO_CUDA_BLAS"
)

// blasBytes is the size of cuBLAS's workspace: NVIDIA's largest recommendation for any GPU.
const blasBytes = 32 << 20

// oldestCUDA is the version whose PTX the kernels are.
const oldestCUDA = 11080

// Config says on which GPU a Device computes, and how.
type Config struct {
	// Index is the GPU's, as Devices counts.
	Index int
	// Precision is the operands' precision in products.
	Precision compute.Precision
}

// Info describes a GPU.
type Info = driver.Info

// Devices lists the GPUs of this machine, without their free memory: see Inspect. Without a driver
// its error says why.
func Devices() ([]Info, error) {
	all, err := driver.Devices()
	if err != nil {
		return nil, fmt.Errorf("cuda: no GPU: %w", err)
	}
	return all, nil
}

// Inspect describes a GPU and its free memory. It opens a context on the GPU, which takes half a
// second and, until it returns, half a gigabyte. It accepts GPUs that New finds too old.
func Inspect(index int) (Info, error) {
	info, err := find(index)
	if err != nil {
		return Info{}, err
	}
	if info.Free, err = driver.Free(index); err != nil {
		return Info{}, fmt.Errorf("cuda: GPU %d: %w", index, err)
	}
	return info, nil
}

// Device computes on a GPU. It is a compute.Recorder. Its methods are those of compute's
// interfaces; its parts have the rest.
type Device struct {
	queue  queue
	memory memory
	ferry  ferry
	gemm   gemm
	nccl   *driver.NCCL // nil until it is needed
	groups map[*ncclGroup]struct{}
	idRows []int32 // zeros, one for every id: EmbedBackward's, between its calls
}

// newDevice is a Device that has not opened its GPU.
func newDevice(c Config, info Info) *Device {
	d := &Device{queue: queue{info: info}, groups: map[*ncclGroup]struct{}{}}
	d.memory, d.ferry.memory = newMemory(&d.queue), &d.memory
	d.gemm = gemm{queue: &d.queue, memory: &d.memory, precision: c.Precision}
	return d
}

var _ compute.Recorder = (*Device)(nil)

// New opens a GPU. The Device's context stays on it until Close. It fails, and says why, if there
// is no driver or no such GPU, or if the GPU is too old.
func New(c Config) (_ *Device, err error) {
	if c.Precision < compute.FP32 || c.Precision > compute.FP16 {
		return nil, fmt.Errorf("cuda: precision %v is unknown: give fp32, tf32, bf16 or fp16",
			c.Precision)
	}
	info, err := find(c.Index)
	if err == nil {
		err = tooOld(driver.Version(), info.Driver)
	}
	if err != nil {
		return nil, err
	}
	if err := lower(&info, os.Getenv(ptxEnvironment)); err != nil {
		return nil, err
	}
	d := newDevice(c, info)
	q := &d.queue
	q.name = d.title("")
	if q.patience, err = readPatience(); err != nil {
		return nil, err
	}
	if q.kernels, err = newKernelTable(info.Major, info.Minor); err != nil {
		return nil, fmt.Errorf("cuda: %s: %w", q.name, err)
	}
	if q.context, err = driver.Open(c.Index); err != nil {
		return nil, fmt.Errorf("cuda: opening %s: %w", q.name, err)
	}
	if err := d.start(); err != nil {
		d.Close()
		return nil, fmt.Errorf("cuda: opening %s: %w", q.name, err)
	}
	return d, nil
}

// find describes the GPU at an index.
func find(index int) (Info, error) {
	count, err := driver.Count()
	if err != nil {
		return Info{}, fmt.Errorf("cuda: no GPU: %w", err)
	}
	if index < 0 || index >= count {
		return Info{}, fmt.Errorf("cuda: no GPU %d: the driver shows %d, counted from 0", index,
			count)
	}
	info, err := driver.Describe(index)
	if err != nil {
		return Info{}, fmt.Errorf("cuda: GPU %d: %w", index, err)
	}
	return info, nil
}

// tooOld returns an error if a driver is too old to read the kernels.
func tooOld(version int, named string) error {
	if version >= oldestCUDA {
		return nil
	}
	return fmt.Errorf("cuda: the driver supports CUDA %s, and the kernels need 11.8: install "+
		"NVIDIA's driver 520 or newer", named)
}

// lower makes a GPU pass for one of an older architecture, if that is asked for.
func lower(info *Info, architecture string) error {
	if architecture == "" {
		return nil
	}
	n, err := strconv.Atoi(architecture)
	if err != nil || n > 10*info.Major+info.Minor {
		return fmt.Errorf("cuda: %s is %q: give an architecture, such as 70, that is not above "+
			"cuda:%d's %d%d", ptxEnvironment, architecture, info.Index, info.Major, info.Minor)
	}
	info.Major, info.Minor = n/10, n%10
	return nil
}

// start opens the parts that every Device has.
func (d *Device) start() (err error) {
	defer compute.Catch(&err)
	if err := d.queue.open(); err != nil {
		return err
	}
	for range ferrySlots {
		d.ferry.slots = append(d.ferry.slots, d.memory.newSlot(ferryBytes))
	}
	lacks, err := d.gemm.open()
	d.queue.name = d.title(lacks)
	return err
}

// title is the Device's name.
func (d *Device) title(lacks string) string {
	i := &d.queue.info
	return fmt.Sprintf("cuda:%d %s (%v%s)", i.Index, i.Name, d.gemm.precision, lacks)
}

// Name describes the GPU, its precision and its missing libraries, for people: "cuda:0 NVIDIA H200
// (bf16)", "cuda:1 Tesla V100-SXM2-16GB (fp32; no cuBLAS)". A library that does not start has a
// reason: "(fp32; no cuBLAS: 13 says NOT_INITIALIZED)".
func (d *Device) Name() string { return d.queue.name }

// CUBLAS is the file of cuBLAS, which computes large products; empty where there is none.
func (d *Device) CUBLAS() string {
	if d.gemm.blas == nil {
		return ""
	}
	return d.gemm.blas.Library()
}

// Info describes the GPU, with its free memory at the time of opening.
func (d *Device) Info() Info { return d.queue.info }

// Precision is the operands' precision in products.
func (d *Device) Precision() compute.Precision { return d.gemm.precision }

// Close frees everything of the Device, the memory of its layers and recordings included. These may
// still be closed, but not used.
func (d *Device) Close() {
	q := &d.queue
	if q.context == nil {
		return
	}
	d.close() // the memory of a failed device ends with the context
	q.context.Close()
	q.context = nil
	if d.nccl != nil && !q.broken { // an abort that hangs may still use it
		d.nccl.Close()
	}
	d.memory = newMemory(q)
}

// close frees everything in the context. A device that has failed may not answer; its memory ends
// with the context.
func (d *Device) close() (err error) {
	defer compute.Catch(&err)
	q := &d.queue
	if q.fence != nil {
		q.finish("closing")
	}
	if q.broken {
		return nil
	}
	for g := range d.groups {
		g.Close()
	}
	if d.gemm.blas != nil {
		q.check("closing cuBLAS", d.gemm.blas.Close())
	}
	for r := range d.memory.recordings {
		r.Close()
	}
	q.copyStream.close(q)
	d.memory.close()
	q.close()
	return nil
}

// at is the address of a slice of the device's memory; nil for an empty one.
func at(x []float32) unsafe.Pointer {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(x))
}
