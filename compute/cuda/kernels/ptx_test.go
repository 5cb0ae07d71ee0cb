//go:build cuda

package kernels

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every source has its PTX for every architecture, and a GPU is given the newest that it can run.
func TestPTX(t *testing.T) {
	sources, err := filepath.Glob("*.cu")
	if err != nil || len(sources) == 0 {
		t.Fatalf("sources %q, %v", sources, err)
	}
	var want []string
	for _, source := range sources {
		want = append(want, strings.TrimSuffix(source, ".cu"))
	}
	for _, c := range []struct{ major, minor, architecture int }{
		{7, 0, 70}, {7, 5, 70}, {8, 0, 80}, {8, 9, 80}, {9, 0, 90}, {12, 1, 90},
	} {
		all, err := PTX(c.major, c.minor)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range all {
			got = append(got, m.Name)
			if target := fmt.Sprintf("\n.target sm_%d\n", c.architecture); !strings.Contains(
				m.PTX, target) {
				t.Errorf("capability %d.%d, %s: no %q", c.major, c.minor, m.Name, target)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("capability %d.%d: modules %q, want %q", c.major, c.minor, got, want)
		}
	}
	if _, err := PTX(6, 1); err == nil || !strings.Contains(err.Error(), "6.1 is too old") {
		t.Errorf("capability 6.1: %v", err)
	}
}

// Two modules with a kernel of one name would hide one of the two.
func TestKernelNames(t *testing.T) {
	all, err := PTX(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{}
	for _, m := range all {
		for line := range strings.Lines(m.PTX) {
			rest, ok := strings.CutPrefix(line, ".visible .entry ")
			if !ok {
				continue
			}
			name, _, _ := strings.Cut(rest, "(")
			if of[name] != "" {
				t.Errorf("kernel %s is in %s and in %s", name, of[name], m.Name)
			}
			of[name] = m.Name
		}
	}
	if len(of) == 0 {
		t.Error("no kernel found")
	}
}

// The folder holds nothing that no source stands for.
func TestNoStalePTX(t *testing.T) {
	files, err := os.ReadDir("ptx")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name, _, _ := strings.Cut(file.Name(), ".")
		if _, err := os.Stat(name + ".cu"); err != nil {
			t.Errorf("ptx/%s: %v", file.Name(), err)
		}
	}
}
