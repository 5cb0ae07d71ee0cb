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

// learner is a program that stands for rondo. Its loss is 2, but with top-k 2.1; it sends 100 bytes
// over the loopback interface for each of its 10 steps, but 10 with top-k.
const learner = `#!/bin/sh
loss=2 bytes=1000
for word in "$@"; do
	case "$word" in topk*) loss=2.1 bytes=100;; esac
done
total=$(cat "$(dirname "$0")/total")
total=$((total + bytes))
echo $total > "$(dirname "$0")/total"
printf 'head\n eth0: 1 2 3 4 5 6 7 8 9\n lo: 1 2 3 4 5 6 7 8 %d 10\n' $total \
	> "$(dirname "$0")/counters"
echo '{"event":"step","step":10,"epoch":0,"loss":1}'
echo '{"event":"eval","step":10,"loss":'$loss'}'
echo '{"event":"done","tokens_per_second":1000}'
`

func TestRun(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"rondo": learner, "total": "5",
		"counters": "lo: 1 2 3 4 5 6 7 8 5\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := config{Rondo: filepath.Join(folder, "rondo"), Corpus: "text", Steps: 10, Workers: 2,
		Limit: 0.01, Counters: filepath.Join(folder, "counters")}
	var out bytes.Buffer
	err := run(context.Background(), c, &out, io.Discard)
	if err == nil || err.Error() != "cases that end more than 1% above float32: 4" {
		t.Errorf("%v; want that top-k is above", err)
	}
	rows := strings.Split(out.String(), "\n")
	for i, want := range map[int]string{
		1: "--wire fp32                      2.0000   +0.00%           100    1.0x      1000  yes",
		5: "--compress topk:0.1              2.1000   +5.00%            10   10.0x      1000  no",
	} {
		if rows[i] != want {
			t.Errorf("%q, want %q", rows[i], want)
		}
	}
	c.Only = "bf16"
	if err := run(context.Background(), c, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	c.Counters = filepath.Join(folder, "total")
	if err := run(context.Background(), c, io.Discard, io.Discard); err == nil {
		t.Error("counts without a loopback interface pass")
	}
}
