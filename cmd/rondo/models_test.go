package main

import (
	"strings"
	"testing"

	"rondo/compute"
	"rondo/job/jobspec"
	"rondo/model"
	"rondo/task"
)

// Every cell, task and part is listed in a line of its own, and every cell and task has a network.
func TestModels(t *testing.T) {
	_, list, _ := rondo(t, "models")
	listed := func(flag string) {
		t.Helper()
		if strings.Count("\n"+list, "\n"+flag+" ") != 1 {
			t.Errorf("%s is not in a line of its own:\n%s", flag, list)
		}
	}
	shown := func(kind, name string) {
		t.Helper()
		listed("--" + kind + " " + name)
		code, out, complaint := rondo(t, "models", name)
		if code != 0 || complaint != "" || !strings.Contains(out, "--"+kind+" "+name+":") ||
			!strings.Contains(out, " parameters, ") {
			t.Errorf("%s: exit code %d, %q\n%s", name, code, complaint, out)
		}
	}
	for _, name := range compute.CellNames() {
		shown("cell", name)
	}
	for _, name := range task.Names() {
		shown("task", name)
	}
	for _, cell := range model.TreeCells() {
		listed("--tree-cell " + cell.Name)
		_, out, _ := rondo(t, "models", "tree", "--tree-cell", cell.Name)
		for _, equation := range strings.Split(cell.Equations, "; ") {
			if !strings.Contains(out, "\n    "+equation+"\n") {
				t.Errorf("%s: no %q in\n%s", cell.Name, equation, out)
			}
		}
	}
	for _, part := range model.Parts() {
		listed("--" + part.Flag)
		if len(jobspec.GroupsOf(part.Flag)) != 1 || part.Does == "" || part.Source == "" {
			t.Errorf("%+v is not a flag with its text", part)
		}
	}
	if code, _, complaint := rondo(t, "models", "transformer"); code != 2 ||
		complaint != "rondo models: \"transformer\" is no cell and no task: `rondo models` "+
			"lists them\n" {
		t.Errorf("exit code %d, %q", code, complaint)
	}
}

// The parameters are those that torch.nn counts: 4 H (D + H + 2) in each layer, and the output's.
func TestModelsCount(t *testing.T) {
	_, out, _ := rondo(t, "models", "lstm", "--hidden", "8", "--layers", "2", "--vocab", "5")
	const want = 4*8*(5+8+2) + 4*8*(8+8+2) + 5*8 + 5 // 1101
	if !strings.Contains(out, "\n1101 parameters, ") || want != 1101 {
		t.Errorf("not %d parameters:\n%s", want, out)
	}
}
