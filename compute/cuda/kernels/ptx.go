//go:build cuda

package kernels

import (
	"embed"
	"fmt"
	"path"
	"strings"
)

//go:embed ptx/*.ptx
var compiled embed.FS

// A Module is a source of kernels, compiled.
type Module struct {
	Name string // of the source, without its ending
	PTX  string
}

// PTX returns all modules, compiled for the newest architecture that a GPU of this compute
// capability can run, by name. A GPU older than the oldest architecture has none.
func PTX(major, minor int) ([]Module, error) {
	newest := 0
	for _, architecture := range architectures() {
		if architecture <= 10*major+minor {
			newest = architecture
		}
	}
	if newest == 0 {
		return nil, fmt.Errorf("a GPU of compute capability %d.%d is too old: it takes %d.%d "+
			"(Volta) or newer", major, minor, architectures()[0]/10, architectures()[0]%10)
	}
	return modules(newest)
}

// architectures are those that there is PTX for, ascending: scripts/kernels.sh has the same.
func architectures() []int { return []int{70, 80, 90} }

func modules(architecture int) ([]Module, error) {
	const folder = "ptx"
	entries, err := compiled.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var all []Module
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), fmt.Sprintf(".sm_%d.ptx", architecture))
		if !ok {
			continue
		}
		text, err := compiled.ReadFile(path.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, Module{Name: name, PTX: string(text)})
	}
	return all, nil
}
