package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/allreduce"
	"rondo/bench/predict"
)

func TestBenchSimulate(t *testing.T) {
	line := "simulate --workers 1,2,16,64 --parameters 1000000"
	code, out, complaint := runBench(t.Context(), line+" --json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || complaint != "" || len(lines) != 2*4+1 {
		t.Fatalf("%d, %s\n%s", code, complaint, out)
	}
	var row predict.Row
	err := json.Unmarshal([]byte(lines[7]), &row)
	if err != nil || row.Workers != 64 || row.Topology != predict.Hierarchical ||
		row.Step <= 0.1 ||
		row.Efficiency <= 0.5 ||
		row.Efficiency >= 1 || row.Goodput >= row.Efficiency {
		t.Errorf("%v, %+v", err, row)
	}
	var verdict predict.Verdict
	if err := json.Unmarshal([]byte(lines[8]), &verdict); err != nil || verdict.Sentence == "" {
		t.Errorf("%v, %+v", err, verdict)
	}
	code, out, complaint = runBench(t.Context(), line)
	lines = strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || complaint != "" || len(lines) != 1+2*4+1 || len(lines[0]) != len(lines[1]) ||
		len(lines[0]) > 100 || lines[9] != verdict.Sentence {
		t.Errorf("%d, %s\n%s", code, complaint, out)
	}
}

// --topology auto chooses a hierarchy where the model predicts that it is faster: with two hosts,
// and from thousands of workers on.
func TestHierarchyPaysAsSimulated(t *testing.T) {
	code, out, complaint := runBench(t.Context(), "simulate --workers 16,256,512,1024,2048,4096 "+
		"--link-jitter 0s --compute-jitter 0 --json")
	if code != 0 {
		t.Fatal(complaint)
	}
	steps := map[int]map[predict.Topology]float64{}
	for rows := json.NewDecoder(strings.NewReader(out)); ; {
		var row predict.Row
		if err := rows.Decode(&row); err != nil || row.Workers == 0 { // the verdict is last
			break
		}
		if steps[row.Workers] == nil {
			steps[row.Workers] = map[predict.Topology]float64{}
		}
		steps[row.Workers][row.Topology] = row.Step
	}
	if len(steps) != 6 {
		t.Fatal(out)
	}
	for workers, of := range steps {
		hosts := make([]string, workers)
		for rank := range hosts {
			hosts[rank] = fmt.Sprint(rank / 8)
		}
		faster := of[predict.Hierarchical] < of[predict.Flat]
		if pays := allreduce.NewLayout(hosts, 0).Pays(); pays != faster {
			t.Errorf("%d workers, 8 a host: a hierarchy pays %v, but is simulated as faster %v: %v",
				workers, pays, faster, of)
		}
	}
}

// Measurements replace the flags: a link ten times as slow makes longer steps.
func TestBenchSimulateMeasured(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	steps := func(flags string) float64 {
		code, out, complaint := runBench(t.Context(), "simulate --workers 4 --host-workers 1 "+
			"--json --compute-jitter 0 --link-jitter 0s --overlap=false "+flags)
		var row predict.Row
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&row); code != 0 || err != nil {
			t.Fatalf("%d, %v, %s", code, err, complaint)
		}
		return row.Step
	}
	// 1 Gb/s with 100 microseconds: of two ranks each sends as many bytes as there are.
	file := write("rows", `{"world":2,"bytes":1000,"ms":0.208}`+
		`{"world":2,"bytes":1000000,"ms":8.2}{"world":2,"bytes":10000000,"ms":80.1}`)
	fast, slow := steps(""), steps("--measured "+file)
	// 40 MB at 3/2 of 1 Gb/s are 480 ms, behind 100 ms of computing.
	if fast > 0.2 || slow < 0.57 || slow > 0.6 {
		t.Errorf("steps of %v s, and of %v s on the measured link", fast, slow)
	}
	samples := write("samples", "[0.25,0.25]")
	if got := steps("--compute-samples " + samples); got < fast+0.149 || got > fast+0.151 {
		t.Errorf("steps of %v s and of %v s with samples", fast, got)
	}
	for flags, want := range map[string]string{
		"--measured nothing": "--measured nothing: open nothing",
		"--measured " + write("one", `{"world":2,"bytes":4,"ms":1}`): "all-reduces of at least two",
		"--measured " + write("text", "x"):                           "row 1: ",
		"--compute-samples " + write("bad", "{}"):                    "--compute-samples",
		"--compute-samples " + write("zero", "[0]"):                  "a step must take time",
	} {
		code, _, complaint := runBench(t.Context(), "simulate "+flags)
		if code != 2 || !strings.Contains(complaint, want) || strings.Count(complaint, "\n") != 1 {
			t.Errorf("%s: %d, %q, want %q", flags, code, complaint, want)
		}
	}
}

func TestBenchSimulateUsage(t *testing.T) {
	for flags, want := range map[string]string{
		"--workers 0":          "--workers 0: must be 1 to 16384",
		"--workers 12":         "--workers 12: more than a host has",
		"--wire int8":          `--wire "int8": must be fp32 or bf16 or fp16`,
		"--bandwidth 0":        "--bandwidth 0: must be more than 0",
		"--threshold 2":        "--threshold 2: must be more than 0",
		"--parameters 0":       "--parameters times --wire's bytes 0: must be",
		"--straggler-factor 0": "--straggler-factor 0: must be 1",
	} {
		code, _, complaint := runBench(t.Context(), "simulate "+flags)
		if code != 2 || !strings.Contains(complaint, want) || strings.Count(complaint, "\n") != 1 {
			t.Errorf("%s: %d, %q", flags, code, complaint)
		}
	}
}
