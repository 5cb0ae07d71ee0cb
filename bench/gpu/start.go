package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rondo/compute/cuda/emulator"
)

// start runs a command.
func start(ctx context.Context, arguments []string) error {
	switch first := strings.Join(arguments[:min(1, len(arguments))], ""); first {
	case "measure":
		return measureCommand(ctx, arguments[1:], os.Stdout)
	case "compress":
		return compress(os.Stdout, os.Stdin)
	case "decompress":
		return decompress(os.Stdout, os.Stdin)
	}
	var c config
	set := flag.NewFlagSet("gpu [flag...] facts|tests|tools", flag.ContinueOnError)
	set.StringVar(&c.Folder, "folder", ".", "folder of the programs that it starts")
	set.StringVar(&c.Work, "work", "", "folder for the logs; default: a new temporary one")
	set.StringVar(&c.Out, "out", os.Getenv("OUT"), "folder for the archive of the results; "+
		"default: the variable OUT, else the working directory")
	set.StringVar(&c.Python, "python", "", "interpreter that has torch; default: it is looked for")
	set.StringVar(&c.Only, "only", "", "run these parts, by commas")
	set.BoolVar(&c.Emulated, "emulated", false, "try the command on the emulated driver, with "+
		"small shapes and eight times the limits; in Rondo's tree")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	c.Command = strings.Join(set.Args(), " ")
	if err := c.prepare(); err != nil {
		return err
	}
	return run(ctx, c, os.Stdout)
}

// emulatedSlowness multiplies the limits on the emulated driver.
const emulatedSlowness = 8

// prepare makes the folders' names absolute, for processes run in Work, and chooses the driver.
func (c *config) prepare() (err error) {
	c.Limit = commandLimit
	if c.Work == "" {
		if c.Work, err = os.MkdirTemp("", "rondo-gpu-results-"); err != nil {
			return err
		}
	}
	for _, path := range []*string{&c.Folder, &c.Work, &c.Out} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if !c.Emulated {
		// The first process to load a kernel compiles it, and the others find it here.
		err := os.Setenv("CUDA_CACHE_PATH", filepath.Join(c.Work, "compiled"))
		return errors.Join(err, os.Setenv("RONDO_CUDA_PATIENCE", patience))
	}
	c.Limit *= emulatedSlowness
	return emulator.Enter()
}

// patience is how long a process waits for the GPU: one that hangs must not take the others' time.
const patience = "20s"

// commandLimit bounds a command's parts: nine minutes, less the time of unpacking.
const commandLimit = 530 * time.Second
