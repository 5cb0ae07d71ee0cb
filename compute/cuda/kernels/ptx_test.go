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

// Every source has PTX for every GPU, and a GPU is given the highest architecture that it can run.
func TestPTX(t *testing.T) {
	sources, err := filepath.Glob("*.cu")
	if err != nil || len(sources) == 0 {
		t.Fatalf("sources %q, %v", sources, err)
	}
	for _, c := range []struct {
		major, minor int
		architecture map[string]int // of some modules
	}{
		{7, 0, map[string]int{"cells": 70, "flat": 70, "tensor": 70}},
		{7, 5, map[string]int{"cells": 70, "flat": 70, "tensor": 70}},
		{8, 0, map[string]int{"cells": 80, "flat": 70, "tensor": 80}},
		{8, 9, map[string]int{"cells": 80, "flat": 70, "tensor": 80}},
		{9, 0, map[string]int{"cells": 80, "flat": 70, "tensor": 80}},
		{12, 1, map[string]int{"cells": 80, "flat": 70, "tensor": 80}},
	} {
		all, err := PTX(c.major, c.minor)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range all {
			got = append(got, m.Name+".cu")
			want, ok := c.architecture[m.Name]
			target := fmt.Sprintf("\n.target sm_%d\n", want)
			if ok && !strings.Contains(m.PTX, target) {
				t.Errorf("capability %d.%d, %s: no %q", c.major, c.minor, m.Name, target)
			}
		}
		if !slices.Equal(got, sources) {
			t.Errorf("capability %d.%d: modules of %q, want %q", c.major, c.minor, got, sources)
		}
	}
	if _, err := PTX(6, 1); err == nil || !strings.Contains(err.Error(), "6.1 is too old") {
		t.Errorf("capability 6.1: %v", err)
	}
}

// The choice at each capability is that of a plain search of the folder, and no file repeats the
// one that would be chosen without it.
func TestPTXIsTheHighestThatServes(t *testing.T) {
	files, err := filepath.Glob(folder + "/*.ptx")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %q, %v", files, err)
	}
	text := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text[filepath.Base(file)] = string(content)
	}
	for _, gpu := range []int{lowest, 75, 80, 89, 90, 100, 121} {
		all, err := PTX(gpu/10, gpu%10)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			var serving []string // ascending
			for architecture := lowest; architecture <= gpu; architecture++ {
				if s, ok := text[fmt.Sprintf("%s.sm_%d.ptx", m.Name, architecture)]; ok {
					serving = append(serving, s)
				}
			}
			first := fmt.Sprintf("// %s.cu for compute_%d,", m.Name, lowest)
			if !strings.HasPrefix(serving[0], first) {
				t.Errorf("%s has no file for sm_%d", m.Name, lowest)
			}
			last := len(serving) - 1
			if m.PTX != serving[last] {
				t.Errorf("capability %d, %s: not the highest of %d files", gpu, m.Name, last+1)
			}
			if last > 0 && withoutTarget(serving[last]) == withoutTarget(serving[last-1]) {
				t.Errorf("capability %d, %s: the file repeats the one below it", gpu, m.Name)
			}
		}
	}
}

// withoutTarget is PTX without the two lines that name the architecture.
func withoutTarget(ptx string) string {
	_, ptx, _ = strings.Cut(ptx, "\n")
	head, tail, _ := strings.Cut(ptx, "\n.target ")
	_, tail, _ = strings.Cut(tail, "\n")
	return head + "\n" + tail
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
