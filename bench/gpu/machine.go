package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// versions describes the machine. It fails without a GPU.
func versions(ctx context.Context, s *session) (string, error) {
	text, err := s.output(ctx, "versions", s.program("rondo"), "devices")
	fmt.Fprint(s.out, string(text))
	if err == nil && !strings.Contains(string(text), "\ncuda:0") {
		err = errors.New("the driver shows no GPU")
	}
	if err != nil {
		return "", err
	}
	said := []string{s.findTorch(ctx)}
	for _, name := range []string{"nvidia-smi", "nvcc", "ncu", "compute-sanitizer"} {
		path := tool(name)
		if path == "" {
			said = append(said, "no "+name)
			continue
		}
		flags := []string{"--version"}
		if name == "nvidia-smi" {
			flags = nil // it also shows other processes on the GPU
		}
		//nolint:errcheck // the log has what it says
		s.output(ctx, "versions", append([]string{path}, flags...)...)
	}
	return strings.Join(said, "; "), nil
}

// tool finds a program of CUDA's toolkit, which need not be in PATH; empty: there is none.
func tool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/local/cuda*/bin/", "/opt/nvidia/*/",
		"/opt/nvidia/*/*/"} {
		// A pattern without a fault has no error.
		if found, _ := filepath.Glob(pattern + name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
}

// torchVersions is the output of torch_gpu.py --versions.
type torchVersions struct {
	Torch string `json:"torch"`
	CUDA  string `json:"cuda"`
	CUDNN int    `json:"cudnn"`
	GPU   bool   `json:"gpu"` // whether it sees one
}

// Limits of the search for torch. From a disk that has not been read yet, its libraries of some
// gigabytes take tens of seconds.
const (
	importLimit = 45 * time.Second
	maxPythons  = 8
)

// findTorch finds an interpreter whose torch sees a GPU, and says what it has found.
func (s *session) findTorch(ctx context.Context) (said string) {
	candidates := pythons()
	if s.Python != "" {
		candidates = []string{s.Python}
	}
	said = "no PyTorch"
	for _, python := range candidates[:min(len(candidates), maxPythons)] {
		limited, cancel := context.WithTimeoutCause(ctx, importLimit,
			errors.New("importing torch took too long"))
		text, err := s.output(limited, "versions", python, s.program("torch_gpu.py"), "--versions")
		late := limited.Err() != nil
		cancel()
		var v torchVersions
		switch {
		case late:
			said = fmt.Sprintf("%s did not import torch in %v", python, importLimit)
		case err != nil || json.Unmarshal(text, &v) != nil:
		case v.GPU || s.Emulated:
			s.python, s.results.Torch = python, v
			return fmt.Sprintf("torch %s (CUDA %s, cuDNN %d) in %s", v.Torch, v.CUDA, v.CUDNN,
				python)
		default:
			said = fmt.Sprintf("torch %s (CUDA %s) in %s sees no GPU", v.Torch, v.CUDA, python)
		}
	}
	return said
}

// pythons are the interpreters of PATH, of an active environment, and of the folders where images
// keep one.
func pythons() []string {
	var all []string
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			all = append(all, path)
		}
	}
	for _, folder := range []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX"), "/opt/*",
		"/opt/*/.venv", "/opt/*/venv", os.Getenv("HOME") + "/*conda*", "/usr/local", "/usr"} {
		if folder != "" {
			found, _ := filepath.Glob(folder + "/bin/python3") // without a fault: no error
			all = append(all, found...)
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(path string) bool {
		twice := seen[path]
		seen[path] = true
		return twice
	})
}
