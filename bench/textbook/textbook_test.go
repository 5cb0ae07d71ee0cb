package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a program that stands for rondo: a shell script.
func program(t *testing.T, script string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rondo")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// learner reports a loss of 0.05 (perplexity 1.051), and 0.3 (1.350) under random sampling.
const learner = `
loss=0.05
for word in "$@"; do [ "$word" = random ] && loss=0.3; done
echo '{"event":"step","step":1,"epoch":0,"loss":'$loss'}'
echo '{"event":"sample","text":"time traveller for so"}'
echo '{"event":"done","tokens_per_second":1000}'
`

func TestRun(t *testing.T) {
	var out bytes.Buffer
	c := config{Rondo: program(t, learner), Corpus: "text", Epochs: 1, Workers: 2}
	err := run(context.Background(), c, &out, io.Discard)
	if err == nil || err.Error() != "1 of 6 cases are above their limit" {
		t.Errorf("%v; want that the two layers' limit is missed", err)
	}
	for _, row := range []string{
		`GRU                         1.051   1.06 pass        1000  " for so"`,
		`LSTM, 2 layers, lr 2        1.051   1.05 FAIL        1000  " for so"`,
		`GRU, random                 1.350   1.40 pass        1000  " for so"`,
	} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("%s\nlacks %s", &out, row)
		}
	}

	c.Only = "random"
	if err := run(context.Background(), c, io.Discard, io.Discard); err != nil {
		t.Errorf("only random: %v", err)
	}
	c.Only = "transformer"
	if err := run(context.Background(), c, io.Discard, io.Discard); err == nil {
		t.Error("a case that is not there passes")
	}
	c.Only, c.Rondo = "RNN", program(t, "exit 1")
	err = run(context.Background(), c, io.Discard, io.Discard)
	if err == nil || !strings.HasPrefix(err.Error(), "RNN: ") {
		t.Errorf("a job that fails: %v", err)
	}
}

// The settings, in the order in which a later flag replaces an earlier one.
func TestCommand(t *testing.T) {
	c := config{Rondo: "rondo", Corpus: "t.txt", Epochs: 500, Workers: 2,
		Precision: "bf16", Extra: []string{"--clip-scope", "global"}}
	line := strings.Join(c.command(cases()[2]), " ")
	for _, part := range []string{"rondo train --json --corpus t.txt --epochs 500 --workers 2 ",
		"--precision bf16 --sample-prefix time traveller ",
		"--layers 2 --lr 2 --clip-scope global"} {
		if !strings.Contains(line, part) {
			t.Errorf("%s\nlacks %q", line, part)
		}
	}
	if first := strings.Index(line, "--lr 1"); first > strings.Index(line, "--lr 2") {
		t.Errorf("%s: the case's --lr does not come last", line)
	}
}
