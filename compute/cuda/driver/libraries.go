//go:build cuda

package driver

import (
	"os"
	"os/exec"
	"path/filepath"
)

// maxFolders bounds the folders of pip that are looked into.
const maxFolders = 64

// librariesEnvironment names folders, by colons, to look into instead of the toolkit's and pip's.
const librariesEnvironment = "RONDO_CUDA_LIBRARIES"

// libraryFolders are those in which a library of NVIDIA is looked for, each with a slash behind:
// where the loader looks, written as none; the toolkit's; and where conda (lib) and pip
// (site-packages/nvidia/*/lib) put NVIDIA's packages, for the Python of PATH, an active
// environment, the user, and the places where images have one. Only folders that have the file are
// returned, and the first always.
func libraryFolders(file string) []string {
	all := []string{"", "/usr/local/cuda/lib64/"}
	roots := pythonRoots()
	if named := os.Getenv(librariesEnvironment); named != "" {
		all, roots = all[:1], nil
		for _, folder := range filepath.SplitList(named) {
			all = append(all, filepath.Clean(folder)+"/")
		}
	}
	for _, root := range roots {
		for _, lib := range []string{"lib", "lib/python3*/site-packages/nvidia/*/lib",
			"lib/python3*/dist-packages/nvidia/*/lib"} {
			// The pattern has no fault, and so the call no error.
			found, _ := filepath.Glob(filepath.Join(root, lib, file))
			for _, path := range found {
				all = append(all, filepath.Dir(path)+"/")
			}
		}
	}
	kept := all[:1]
	for _, folder := range all[1:min(len(all), maxFolders)] {
		if _, err := os.Stat(folder + file); err == nil {
			kept = append(kept, folder)
		}
	}
	return kept
}

// pythonRoots are patterns of the folders that have a Python's lib.
func pythonRoots() []string {
	roots := []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX")}
	if python, err := exec.LookPath("python3"); err == nil {
		roots = append(roots, filepath.Dir(filepath.Dir(python)))
	}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	roots = append(roots, "/opt/*", "/opt/*/.venv", "/opt/*/venv", "/usr/local", "/usr")
	var named []string
	for _, root := range roots {
		if root != "" {
			named = append(named, root)
		}
	}
	return named
}
