package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/bench/busbw"
)

// TestMain is also the program of a rank.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "rank" {
		if err := busbw.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// script writes a program that stands for Gloo's side: text is run for each line that it reads.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	program := "#!/bin/sh\nwhile read -r bytes; do\n" + text + "\ndone\n"
	if err := os.WriteFile(path, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// testConfig has a Gloo that takes an hour.
func testConfig(t *testing.T) config {
	return config{
		Rank:   []string{os.Args[0], "rank"},
		Python: script(t, `echo '{"world":2,"bytes":'$bytes',"ms":3600000,"busbw":0.25}'`),
		Worlds: "2", Sizes: "64,128", Link: "tcp", Wire: "bf16", Seconds: 0.01,
	}
}

func TestRun(t *testing.T) {
	c := testConfig(t)
	c.AtLeast = 1
	var out bytes.Buffer
	if err := run(t.Context(), c, &out, os.Stderr); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("want two lines above two rows:\n%s", &out)
	}
	for i, bytes := range []string{"64", "128"} {
		cells := strings.Fields(lines[2+i])
		if len(cells) != 12 || cells[1] != bytes || cells[3] != "3600000.000" {
			t.Errorf("row %q, want one of %s bytes that took Gloo an hour", lines[2+i], bytes)
		}
	}
	c.AtLeast = 1e12
	err := run(t.Context(), c, &out, os.Stderr)
	const want = "below 1000000000000.00x of Gloo: world 2, 64 bytes "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("-at-least 1e12: %v", err)
	}
}

func TestWrongFlags(t *testing.T) {
	c := testConfig(t)
	if err := c.validate(); err != nil {
		t.Error(err)
	}
	c.Link = "memory"
	err := c.validate()
	if err == nil || !strings.HasPrefix(err.Error(), "-link memory: its ranks are goroutines") {
		t.Errorf("%v", err)
	}
	for want, wrong := range map[string]func(*config){
		`-worlds 2,x: "x" is not a whole number`: func(c *config) { c.Worlds = "2,x" },
		`-sizes : "" is not a whole number`:      func(c *config) { c.Sizes = "" },
		"--sizes 6: must be a multiple of 4":     func(c *config) { c.Sizes = "6" },
		`--wire "fp64": must be`:                 func(c *config) { c.Wire = "fp64" },
	} {
		c := testConfig(t)
		wrong(&c)
		var out bytes.Buffer
		err := run(t.Context(), c, &out, os.Stderr)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A Gloo that fails, or that prints something else, ends the comparison with its command.
func TestGlooThatFails(t *testing.T) {
	for text, want := range map[string]string{
		"exit 3":                            "no row for 64 bytes: EOF",
		`echo '{"bytes":64}'`:               "a row that is none for 64 bytes",
		`echo '{"bytes":256,"ms":1}'`:       "a row that is none for 64 bytes",
		`echo "ImportError: torch"; exit 1`: "no row for 64 bytes: invalid character",
	} {
		c := testConfig(t)
		c.Python = script(t, text)
		var out bytes.Buffer
		err := run(t.Context(), c, &out, os.Stderr)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), c.Python) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
