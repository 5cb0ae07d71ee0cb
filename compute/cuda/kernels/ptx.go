//go:build cuda

package kernels

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// lowest is the architecture that every module has a file for: Volta, compute capability 7.0.
const lowest = 70

const folder = "ptx"

//go:embed ptx/*.ptx
var compiled embed.FS

// A Module is a source of kernels, compiled.
type Module struct {
	Name string // of the source, without its ending
	PTX  string
}

// PTX returns all modules by name, each compiled for the highest architecture that has a file and
// is not above the GPU's compute capability.
func PTX(major, minor int) ([]Module, error) {
	gpu := 10*major + minor
	if gpu < lowest {
		return nil, fmt.Errorf("a GPU of compute capability %d.%d is too old: it takes %d.%d "+
			"(Volta) or newer", major, minor, lowest/10, lowest%10)
	}
	entries, err := compiled.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	best := map[string]int{} // architecture of each module
	for _, entry := range entries {
		name, architecture, err := parse(entry.Name())
		if err != nil {
			return nil, err
		}
		if architecture <= gpu {
			best[name] = max(best[name], architecture)
		}
	}
	var all []Module
	for _, name := range slices.Sorted(maps.Keys(best)) {
		file := fmt.Sprintf("%s/%s.sm_%d.ptx", folder, name, best[name])
		text, err := compiled.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, Module{Name: name, PTX: string(text)})
	}
	return all, nil
}

// parse splits the name of a file: flat.sm_70.ptx.
func parse(file string) (module string, architecture int, err error) {
	module, rest, _ := strings.Cut(file, ".")
	if _, err = fmt.Sscanf(rest, "sm_%d.ptx", &architecture); err != nil {
		err = fmt.Errorf("%s/%s: the name is not MODULE.sm_NN.ptx: %w", folder, file, err)
	}
	return module, architecture, err
}
