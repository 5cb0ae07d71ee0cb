// Package emulator builds a CUDA driver that needs no GPU: a libcuda.so.1, a libcublas.so.12 and a
// libnccl.so.2. They run the project's own kernels on the CPU, compiled from the same sources by a
// C++ compiler. With their folder in LD_LIBRARY_PATH everything above the driver's functions runs
// unchanged, so all of compute/cuda is tested on machines without a GPU.
//
// It is strict where a real driver is lenient. Only kernels and copies may touch device memory,
// which is full of NaN at first, as is shared memory. An access out of bounds or after the release
// ends in CUDA_ERROR_ILLEGAL_ADDRESS. A stream does nothing until something waits for it. Threads
// and blocks run in a random order, by RONDO_EMULATOR_SEED. A barrier that not all threads of a
// block reach, and a deadlock, end the launch with a message on stderr.
//
// It does not show effects of time or of a GPU's weak memory model: one thread runs at a time, and
// all see its writes. A loop that waits for another thread must call relax. Tensor instructions sum
// in double precision. Registers are not counted; there are no textures, peers and managed memory.
// PTX is not run: only its entries are compared with the sources.
//
// Environment variables with the prefix RONDO_EMULATOR set more: _DEVICES, their number; _MEMORY,
// the bytes of each; _MULTIPROCESSORS; _CAPABILITY, as 90; _BREAKS, a file: the GPU of the process
// that removes it fails, after _KERNELS kernels; _NCCL, its version, as 22304, or 0 for one that
// does not work; and _NCCL_FAILS and _NCCL_ABORT, for which see nccl.cpp. It may import nothing of
// ours.
package emulator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	compileLimit = 10 * time.Minute
	maxFolders   = 16  // drivers that are kept
	maxObjects   = 256 // compiled files that are kept
)

// Build returns a folder with the driver, for LD_LIBRARY_PATH. Files that have not changed since an
// earlier call are taken from cache; "" is a folder of the user's.
func Build(cache string) (string, error) {
	sources, err := moduleFolder("compute/cuda")
	if err != nil {
		return "", err
	}
	kernels, err := filepath.Glob(filepath.Join(sources, "kernels", "*.cu"))
	if err != nil {
		return "", err
	}
	return BuildWith(cache, kernels)
}

// BuildWith is Build with other kernels than those of compute/cuda.
func BuildWith(cache string, kernels []string) (string, error) {
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder for the emulated driver: %w", err)
		}
		cache = filepath.Join(user, "rondo", "emulator")
	}
	b, err := newBuilder(cache)
	if err != nil {
		return "", err
	}
	folder, err := b.driver(kernels)
	if err != nil {
		return "", err
	}
	prune(filepath.Join(cache, "drivers"), maxFolders)
	prune(filepath.Join(cache, "objects"), maxObjects)
	return folder, nil
}

// moduleFolder finds a folder of the module that the working directory is in.
func moduleFolder(path string) (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return filepath.Join(folder, filepath.FromSlash(path)), nil
		}
		above := filepath.Dir(folder)
		if above == folder {
			return "", errors.New("the emulated driver is built from its sources: " +
				"run inside of Rondo's tree")
		}
		folder = above
	}
}

// A builder compiles into a cache.
type builder struct {
	cache    string
	compiler string
	flags    []string
	sources  string // the folder compute/cuda
	salt     []byte // common input of all results: the compiler, the CPU, the headers
}

func newBuilder(cache string) (*builder, error) {
	sources, err := moduleFolder("compute/cuda")
	if err != nil {
		return nil, err
	}
	name := os.Getenv("CXX")
	if name == "" {
		name = "g++"
	}
	compiler, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("the emulated CUDA driver is built with %s, which is not there; "+
			"install it, or name another C++ compiler in CXX", name)
	}
	b := &builder{
		cache:    cache,
		compiler: compiler,
		sources:  sources,
		flags: []string{"-std=c++17", "-O2", "-g1", "-march=native", "-fPIC", "-fvisibility=hidden",
			"-fno-strict-aliasing", "-fno-math-errno", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra",
			"-Wno-unknown-pragmas", "-I" + filepath.Join(sources, "emulator", "driver"),
			"-I" + filepath.Join(sources, "kernels")},
	}
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", compiler, err)
	}
	var headers []string
	for _, pattern := range []string{"emulator/driver/*.h", "kernels/*.cuh",
		"../cpu/kernels/cells_gen.h"} {
		found, err := filepath.Glob(filepath.Join(sources, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		headers = append(headers, found...)
	}
	text, err := concatenate(headers)
	if err != nil {
		return nil, err
	}
	b.salt = slices.Concat(version, []byte(strings.Join(b.flags, "\n")), cpuFlags(), text)
	return b, nil
}

// cpuFlags describes the CPU for -march=native, if the system tells.
func cpuFlags() []byte {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return []byte(runtime.GOARCH)
	}
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("flags")) || bytes.HasPrefix(line, []byte("Features")) {
			return line
		}
	}
	return []byte(runtime.GOARCH)
}

// concatenate returns the names and texts of files.
func concatenate(paths []string) ([]byte, error) {
	var all bytes.Buffer
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&all, "%s %d\n", filepath.Base(path), len(text))
		all.Write(text)
	}
	return all.Bytes(), nil
}

// A unit is a file to compile, and its kind of result.
type unit struct {
	source string
	linked bool // into a library of its own
}

// libraries are the libraries beside the driver, with their sources in this folder.
func libraries() map[string]string {
	return map[string]string{
		filepath.Join("blas", "blas.cpp"): "libcublas.so.12",
		filepath.Join("nccl", "nccl.cpp"): "libnccl.so.2",
	}
}

// driver compiles and links everything and returns the folder.
func (b *builder) driver(kernels []string) (string, error) {
	parts, err := filepath.Glob(filepath.Join(b.sources, "emulator", "driver", "*.cpp"))
	if err != nil {
		return "", err
	}
	var units []unit
	for source := range libraries() {
		units = append(units, unit{filepath.Join(b.sources, "emulator", source), true})
	}
	slices.SortFunc(units, func(a, b unit) int { return strings.Compare(a.source, b.source) })
	for _, path := range kernels {
		units = append(units, unit{path, true})
	}
	for _, path := range parts {
		units = append(units, unit{path, false})
	}
	compiled, err := b.compileAll(units)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, u := range units {
		fmt.Fprintf(hash, "%s %s\n", filepath.Base(u.source), filepath.Base(compiled[u.source]))
	}
	folder := filepath.Join(b.cache, "drivers", hex.EncodeToString(hash.Sum(nil))[:16])
	if now := time.Now(); os.Chtimes(folder, now, now) == nil {
		return folder, nil
	}
	return folder, b.assemble(folder, units, compiled)
}

// assemble makes the folder, under another name until it is complete.
func (b *builder) assemble(folder string, units []unit, compiled map[string]string) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	making, err := os.MkdirTemp(filepath.Dir(folder), "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(making)
	if err := os.Mkdir(filepath.Join(making, "kernels"), 0o755); err != nil {
		return err
	}
	link := []string{"-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-o",
		filepath.Join(making, "libcuda.so.1")}
	for _, u := range units {
		from := compiled[u.source]
		switch kernel, is := strings.CutSuffix(filepath.Base(u.source), ".cu"); {
		case is:
			err = copyFile(filepath.Join(making, "kernels", kernel+".so"), from)
		case u.linked:
			source, _ := filepath.Rel(filepath.Join(b.sources, "emulator"), u.source)
			err = copyFile(filepath.Join(making, libraries()[source]), from)
		default:
			link = append(link, from)
		}
		if err != nil {
			return err
		}
	}
	if err := b.run(append(link, "-ldl", "-lpthread")); err != nil {
		return err
	}
	if err := os.Rename(making, folder); err != nil {
		if _, there := os.Stat(filepath.Join(folder, "libcuda.so.1")); there != nil {
			return err
		}
	}
	return nil // perhaps another process was first
}

// compileAll returns the result for each source, a few at a time.
func (b *builder) compileAll(units []unit) (map[string]string, error) {
	var (
		mu       sync.Mutex
		wait     sync.WaitGroup
		problems []error
	)
	results := map[string]string{}
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, u := range units {
		wait.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			path, err := b.compile(u)
			mu.Lock()
			defer mu.Unlock()
			results[u.source] = path
			if err != nil {
				problems = append(problems, err)
			}
		})
	}
	wait.Wait()
	return results, errors.Join(problems...)
}

// compile returns the object file, or library, of a source.
func (b *builder) compile(u unit) (string, error) {
	text, err := concatenate([]string{u.source})
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(slices.Concat(b.salt, text))
	folder := filepath.Join(b.cache, "objects")
	path := filepath.Join(folder, hex.EncodeToString(hash[:])[:32])
	if now := time.Now(); os.Chtimes(path, now, now) == nil {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	making, err := os.CreateTemp(folder, "making-")
	if err != nil {
		return "", err
	}
	defer os.Remove(making.Name())
	making.Close()
	arguments := slices.Concat(b.flags, []string{"-o", making.Name()})
	if u.linked {
		arguments = append(arguments, "-shared")
	} else {
		arguments = append(arguments, "-c")
	}
	if err := b.run(append(arguments, "-x", "c++", u.source)); err != nil {
		return "", err
	}
	return path, os.Rename(making.Name(), path)
}

func (b *builder) run(arguments []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), compileLimit)
	defer cancel()
	command := exec.CommandContext(ctx, b.compiler, arguments...)
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the emulated CUDA driver: %s: %w\n%s",
			strings.Join(command.Args, " "), err, output)
	}
	return nil
}

func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// prune removes all but the newest entries of a folder.
func prune(folder string, keep int) {
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) <= keep {
		return
	}
	age := func(e os.DirEntry) time.Time {
		info, err := e.Info()
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return age(b).Compare(age(a)) })
	for _, e := range entries[keep:] {
		os.RemoveAll(filepath.Join(folder, e.Name()))
	}
}
