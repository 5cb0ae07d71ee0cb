package main

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// run runs a program to its end. The machine code that is made of it is kept in the user's cache.
func run(ctx context.Context, args []string) error {
	program, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	folder, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	empty, err := os.MkdirTemp("", "rondo-replay-") // names that are taken would be drawn again
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(empty) }()
	cache, err := wazero.NewCompilationCacheWithDir(filepath.Join(folder, "rondo", "replay"))
	if err != nil {
		return err
	}
	defer func() { _ = cache.Close(ctx) }()
	runtime := wazero.NewRuntimeWithConfig(ctx,
		wazero.NewRuntimeConfig().WithCompilationCache(cache))
	defer func() { _ = runtime.Close(ctx) }()
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, runtime); err != nil {
		return err
	}
	code, err := runtime.CompileModule(ctx, program)
	if err != nil {
		return err
	}
	var c clock
	_, err = runtime.InstantiateModule(ctx, code, wazero.NewModuleConfig().WithArgs(args...).
		WithStdin(os.Stdin).WithStdout(os.Stdout).WithStderr(os.Stderr).
		WithFSConfig(wazero.NewFSConfig().WithDirMount("/", "/").WithDirMount(empty, scratch)).
		WithEnv("PWD", here).WithEnv("TMPDIR", scratch).
		WithRandSource(rand.NewChaCha8([32]byte{})).
		WithWalltime(c.wall, sys.ClockResolution(tick)).
		WithNanotime(c.read, sys.ClockResolution(tick)).WithNanosleep(c.sleep))
	return err
}

const (
	tick  = time.Microsecond
	epoch = 1_700_000_000 // seconds

	scratch = "/rondo-replay" // the program's folder of temporary files
)

// clock is both clocks of a program, in nanoseconds since it began.
type clock struct{ now int64 }

func (c *clock) read() int64 {
	c.now += int64(tick)
	return c.now
}

func (c *clock) wall() (seconds int64, nanoseconds int32) {
	now := c.read()
	return epoch + now/int64(time.Second), int32(now % int64(time.Second))
}

func (c *clock) sleep(nanoseconds int64) { c.now += max(nanoseconds, 0) }
