package integration

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// modelsPage is the page whose scripts are run.
const modelsPage = "../docs/models.md"

// torchPython is an interpreter that the page's scripts run with. The test is skipped without one.
func torchPython(t *testing.T) string {
	t.Helper()
	python := cmp.Or(os.Getenv("PYTHON"), "../bench/peers/.venv/bin/python")
	out, err := exec.CommandContext(t.Context(), python, "-c",
		"import torch, safetensors.torch").CombinedOutput()
	if err != nil {
		last := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("%s has no torch and safetensors (%v %s); PYTHON=$(bench/peers/setup.sh) runs this",
			python, err, last[len(last)-1])
	}
	return python
}

// script writes the script of the page whose first line begins with its name.
func script(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(modelsPage)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```python\n# "+name+" ")
	code, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("%s has no script %s", modelsPage, name)
	}
	return write(t, name, "# "+code+"\n")
}

// inTorch runs a script of the page.
func inTorch(t *testing.T, python, name, input string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, append([]string{script(t, name)}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

// TestModelsPage: the page's scripts give the answers of Rondo's commands for the same checkpoint.
func TestModelsPage(t *testing.T) {
	python := torchPython(t)
	t.Run("lm", func(t *testing.T) {
		dir := t.TempDir()
		train(t, small("--checkpoint-dir", dir, "--layers", "2", "--steps", "60")...)
		newest, prefix := filepath.Join(dir, "step-00000060"), "a ray of light, and"
		code, stdout, stderr := run(t, "generate", "--checkpoint", newest, "--greedy", "--tokens",
			"50", "--prefix", prefix)
		if code != 0 {
			t.Fatal(stderr)
		}
		sameText(t, stdout, inTorch(t, python, "generate.py", "", newest, prefix, "50"))
	})
	t.Run("regress", func(t *testing.T) {
		corpus, dir := noisySine(t, 300), t.TempDir()
		train(t, seriesFlags(corpus, "--checkpoint-dir", dir, "--cell", "gru")...)
		newest := filepath.Join(dir, "step-00000020")
		code, stdout, stderr := run(t, "predict", "--checkpoint", newest, "--corpus", corpus)
		rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
		if code != 0 || err != nil {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr)
		}
		var predicted strings.Builder
		for _, row := range rows[1:] { // number, then truth and prediction of each column
			fmt.Fprintln(&predicted, row[0], row[2], row[4])
		}
		sameText(t, predicted.String(), inTorch(t, python, "predict.py", "", newest, corpus))
	})
	tasks := labelledTasks(t)
	for _, c := range []struct {
		exampleTask
		flags string
	}{
		{tasks[0], "--cell gru --pool last"},
		{tasks[0], "--cell lstm --pool max"},
		{tasks[0], "--cell rnn --pool mean --bidirectional=false"},
		{tasks[1], "--cell lstm"},
		{filling(t), "--cell gru"},
		{describing(t), "--cell lstm --vector-as both"},
		{describing(t), "--cell gru --vector-as input"},
		{translation(t), "--cell gru"},
		{translation(t), "--cell lstm --attention none --layers 1 --bidirectional=false"},
	} {
		t.Run(c.name+" "+c.flags, func(t *testing.T) {
			dir := t.TempDir()
			train(t, append(c.exampleTask.flags("--checkpoint-dir", dir),
				strings.Fields(c.flags)...)...)
			newest := filepath.Join(dir, "step-00000020")
			const text = "the film was awful\nso Anna Bell was in New York\nunseen two\ndo _ mi _\n"
			args, torch := []string{c.name, "--checkpoint", newest}, []string{newest}
			if c.name == "describe" {
				args, torch = append(args, c.network[1:3]...), append(torch, c.network[2])
			}
			code, stdout, stderr := feed(t, text, args...)
			if code != 0 {
				t.Fatal(stderr)
			}
			sameText(t, stdout, inTorch(t, python, c.name+".py", text, torch...))
		})
	}
}

// sameText compares outputs word by word. Numbers may differ in their last digit.
func sameText(t *testing.T, got, want string) {
	t.Helper()
	a, b := strings.Fields(got), strings.Fields(want)
	same := len(a) == len(b) && len(a) > 0 && strings.Count(got, "\n") == strings.Count(want, "\n")
	for i := 0; same && i < len(a); i++ {
		x, notNumber := strconv.ParseFloat(a[i], 64)
		y, neither := strconv.ParseFloat(b[i], 64)
		if notNumber != nil || neither != nil {
			same = a[i] == b[i]
		} else {
			same = math.Abs(x-y) <= 1.5e-4*max(1, math.Abs(y))
		}
	}
	if !same {
		t.Errorf("Rondo says\n%s\nand PyTorch\n%s", got, want)
	}
}
