package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/audit"
	"rondo/checkpoint"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/proof"
	"rondo/model"
	"rondo/train"
)

// logged writes a job's logs: two workers, a ring that broke in its third step, and the ring after
// it. It returns the folder and the text.
func logged(t *testing.T) (dir, text string) {
	t.Helper()
	dir, text = filepath.Join(t.TempDir(), "logs"), filepath.Join(t.TempDir(), "text.txt")
	content := strings.Repeat("the quick brown fox jumps over the lazy dog\n", 5)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(text, []byte(content), 0o600))
	c, err := corpus.Open(t.Context(), corpus.Config{Source: text,
		Tokenizer: corpus.Tokenizer{Unit: corpus.Char, Normalize: "none"}})
	check(err)
	defer func() { check(c.Close()) }()
	const lanes, bptt = 4, 5
	batches := corpus.SamplerConfig{Tokens: c.Tokens().Len(), Lanes: lanes, BPTT: bptt, Seed: 3,
		Sampling: corpus.Sequential}
	sampler, err := corpus.NewSampler(batches)
	check(err)
	reader := corpus.NewReader(c.Tokens(), sampler)
	var logs [2]*audit.Log
	for i, name := range []string{"a", "b"} {
		logs[i], err = audit.Open(dir, name, sampler.Offset)
		check(err)
	}
	ring := func(generation uint64, from, to, committed int64) {
		for _, l := range logs {
			check(l.Ring(audit.Ring{Run: 1, Generation: generation, From: from,
				Digest: train.Digest(parameters(from), from), World: 2,
				Batches: batches}))
		}
		for step := from + 1; step <= to; step++ {
			for rank, l := range logs {
				inputs := make([]int32, bptt*lanes/2)
				check(reader.Fill(t.Context(), step-1, rank*lanes/2, lanes/2, inputs,
					make([]int32, len(inputs))))
				check(l.Intend(step, 0, rank*lanes/2, lanes/2, inputs))
				if step <= committed {
					check(l.Commit(audit.Commit{Step: step,
						Digest: train.Digest(parameters(step), step)}))
				}
			}
		}
	}
	ring(1, 0, 3, 2)
	ring(2, 2, 5, 5)
	for _, l := range logs {
		check(l.Close())
	}
	return dir, text
}

// parameters are those that the logs of logged have after a step.
func parameters(step int64) []float32 {
	return slices.Repeat([]float32{float32(step)}, model.Alignment)
}

// rondo runs a command line.
func rondo(t *testing.T, args ...string) (code int, out, complaint string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := root()
	c.SetOut(&stdout)
	code = app.Run(t.Context(), c, args, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestAudit(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir, text := logged(t)
	const proof = "steps 1..5: each of 4 lanes read exactly once (20 segments, 2 rings, " +
		"1 attempts repeated)"
	const updates = "\n5 steps, each computed from each segment once, 0 skipped; 4 segments " +
		"repeated, 0 replayed for lost states\n"
	for want, args := range map[string][]string{
		proof + " (tokens not compared: give --corpus)" + updates: {"audit", dir},
		proof + updates: {"audit", dir, "--corpus", text, "--validation-fraction", "0"},
	} {
		if code, out, complaint := rondo(t, args...); code != 0 || out != want {
			t.Errorf("%q: exit code %d, %q %s", args, code, out, complaint)
		}
	}
	code, out, _ := rondo(t, "audit", "--json", dir)
	var report audit.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 ||
		report.Last != 5 || report.Repeated != 1 || report.Rings != 2 || !report.Sound() {
		t.Errorf("exit code %d, %q, %v", code, out, err)
	}
	code, _, complaint := rondo(t, "audit", dir, "--corpus", text, "--max-tokens", "100",
		"--validation-fraction", "0")
	if code == 0 || !strings.Contains(complaint, "the text has 100 tokens") {
		t.Errorf("another text: exit code %d, %s", code, complaint)
	}
	other := strings.Replace(mustRead(t, text), "lazy", "idle", 2)
	if err := os.WriteFile(text, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, complaint = rondo(t, "audit", dir, "--corpus", text, "--validation-fraction", "0")
	if code != 1 || !strings.Contains(out, "other tokens were read than the text has there") ||
		!strings.Contains(complaint, "the logs do not prove") {
		t.Errorf("an altered text: exit code %d, %q %s", code, out, complaint)
	}
	log := filepath.Join(dir, "a.jsonl")
	lines := strings.SplitAfter(mustRead(t, log), "\n")
	without := strings.Join(append(lines[:1:1], lines[2:]...), "")
	if err := os.WriteFile(log, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ = rondo(t, "audit", dir)
	if code != 1 || !strings.Contains(out, "step 1 of generation 1: lanes 0 to 1 were skipped") {
		t.Errorf("a read that was removed: exit code %d, %q", code, out)
	}
	for _, path := range []string{filepath.Join(dir, "nowhere"), log} {
		code, _, complaint := rondo(t, "audit", path)
		if code != 2 || !strings.Contains(complaint, path) || strings.Count(complaint, "\n") != 1 ||
			!strings.Contains(complaint, "give the job's --audit-dir") {
			t.Errorf("no such folder: exit code %d, %q", code, complaint)
		}
	}
}

// TestAuditOfCheckpoints: each must have the parameters that its step left.
func TestAuditOfCheckpoints(t *testing.T) {
	dir, _ := logged(t)
	folder := filepath.Join(t.TempDir(), "run")
	store, err := checkpoint.Open(t.Context(), folder, checkpoint.Config{Job: "a", Identity: "b"})
	if err != nil {
		t.Fatal(err)
	}
	code, _, complaint := rondo(t, "audit", dir, "--checkpoint-dir", folder)
	if code != 2 || !strings.Contains(complaint, "--checkpoint-dir: no checkpoint in "+folder) {
		t.Errorf("an empty folder: exit code %d, %s", code, complaint)
	}
	save := func(step int64, params []float32, digest uint64) {
		t.Helper()
		training := fmt.Appendf(nil, `{"commits":%d}`, step)
		snapshot := checkpoint.Snapshot{Step: step, Digest: digest, Training: training}
		snapshot.Files = []checkpoint.File{{
			Name: job.ModelFile, Tensors: []checkpoint.Tensor{{Name: "output.bias",
				Shape: []int{len(params)}, Data: params}}}}
		if _, err := store.Save(t.Context(), snapshot); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, wantCode int, want string) {
		t.Helper()
		code, out, complaint := rondo(t, "audit", dir, "--checkpoint-dir", folder)
		if code != wantCode || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, %q %s", what, code, out, complaint)
		}
	}
	digest := func(step int64) uint64 { return train.Digest(parameters(step), step) }
	save(2, parameters(2), digest(2))
	want("step 2", 0, "\n1 checkpoints have the parameters of their steps\n")
	save(5, parameters(5), digest(5))
	want("step 5", 0, "\n2 checkpoints have the parameters of their steps\n")
	save(4, parameters(2), digest(4))
	want("another file than the manifest says", 1, "step-00000004 has parameters of digest ")
	save(4, parameters(4), digest(4))
	save(3, parameters(5), train.Digest(parameters(5), 3))
	want("the parameters of step 5", 1, "step-00000003 has other parameters than the ring of "+
		"generation 2 had after step 3\n")
	save(3, parameters(3), digest(3))
	want("all", 0, "\n4 checkpoints have the parameters of their steps\n")
	damaged := filepath.Join(folder, "step-00000002", job.ModelFile)
	content := []byte(mustRead(t, damaged))
	content[len(content)-1] ^= 1
	if err := os.WriteFile(damaged, content, 0o600); err != nil {
		t.Fatal(err)
	}
	want("an altered file", 1, "step-00000002 was altered: SHA-256")
	if err := os.Truncate(damaged, 20); err != nil {
		t.Fatal(err)
	}
	want("a truncated file", 1, "step-00000002 is truncated: 20 bytes")
	states, err := proof.States(t.Context(), store, []int64{1, 2, 3})
	if err != nil || len(states) != 2 || states[0].Damage == "" || states[1].Digest != digest(3) {
		t.Errorf("step 1 was deleted, 2 is damaged: %+v, %v", states, err)
	}
}

// TestAuditOfSeveralRuns: the proof says that there were several runs, since they may not have been
// meant to be one job.
func TestAuditOfSeveralRuns(t *testing.T) {
	for runs, want := range map[int]string{
		1: "steps 3..9: each of 4 lanes read exactly once (28 segments, 5 rings, 0 attempts " +
			"repeated)\n7 steps",
		2: "steps 3..9: each of 4 lanes read exactly once (28 segments, 2 runs, 5 rings, " +
			"0 attempts repeated)\n7 steps",
	} {
		var out strings.Builder
		r := audit.Report{First: 3, Last: 9, Lanes: 4, Segments: 28, Runs: runs, Rings: 5,
			Tokens: true}
		if err := showProof(&out, &r, false); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%d runs: %q, %v; want %q", runs, out.String(), err, want)
		}
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
