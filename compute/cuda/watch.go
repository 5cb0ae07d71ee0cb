//go:build cuda

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"rondo/compute/cuda/kernels"
)

// Environment variables for a GPU that hangs. Patience is the longest wait, a duration. Spins
// bounds how often a persistent kernel looks for another block's data; it needs Kernels, a folder
// with a debug build (scripts/kernels.sh debug).
const (
	patienceEnvironment = "RONDO_CUDA_PATIENCE"
	spinsEnvironment    = "RONDO_CUDA_SPINS"
	kernelsEnvironment  = "RONDO_CUDA_KERNELS"
)

// Limits of the patience.
const (
	usualPatience = 5 * time.Minute
	mostPatience  = 24 * time.Hour
)

// readPatience reads the patience from the environment.
func readPatience() (time.Duration, error) {
	text := os.Getenv(patienceEnvironment)
	if text == "" {
		return usualPatience, nil
	}
	patience, err := time.ParseDuration(text)
	if err != nil || patience <= 0 || patience > mostPatience {
		return 0, fmt.Errorf("cuda: %s is %q: give a duration of %v at most, such as 20s",
			patienceEnvironment, text, mostPatience)
	}
	return patience, nil
}

// watchBytes is the size of a watch: eight words, as kernels/persistent.cuh says.
const watchBytes = 32

// openWatch makes the memory in which persistent kernels report a wait without end, if that is
// asked for.
func (q *queue) openWatch() error {
	text := os.Getenv(spinsEnvironment)
	if text == "" {
		return nil
	}
	spins, err := strconv.ParseUint(text, 10, 32)
	if err != nil || spins == math.MaxUint32 {
		return fmt.Errorf("%s is %q: give a number of looks below 2^32-1", spinsEnvironment, text)
	}
	if q.watch, err = q.context.AllocHost(watchBytes); err != nil {
		return err
	}
	clear(q.watch)
	binary.LittleEndian.PutUint32(q.watch, uint32(spins))
	return nil
}

// watchAt is where the kernels report; nil if they need not.
func (q *queue) watchAt() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(q.watch)) }

// withReport adds to an error which block gave up its wait, if one did.
func (q *queue) withReport(err error) error {
	if q.watch == nil {
		return err
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(q.watch[4*i:]) }
	if word(4) == 0 {
		return err
	}
	return fmt.Errorf("a persistent kernel's block (%d, %d) looked %d times for column %d of step "+
		"%d: %w", word(4)-1, word(5), word(0), word(7), word(6), err)
}

// otherKernels replaces the modules that have a file in the environment's folder of kernels.
func otherKernels(all []kernels.Module) error {
	folder := os.Getenv(kernelsEnvironment)
	if folder == "" {
		return nil
	}
	replaced := 0
	for i := range all {
		text, err := os.ReadFile(filepath.Join(folder, all[i].Name+".ptx"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kernelsEnvironment, err)
		}
		all[i].PTX, replaced = string(text), replaced+1
	}
	if replaced == 0 {
		return fmt.Errorf("%s: %s has no NAME.ptx of a module: make them with scripts/kernels.sh "+
			"debug", kernelsEnvironment, folder)
	}
	return nil
}
