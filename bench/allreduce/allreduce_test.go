package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script writes a program that stands for one of the sides.
func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// testConfig has sides whose times are known: Rondo takes 2 ms and 10, Gloo 3 and 5.
func testConfig(t *testing.T) config {
	return config{
		Rondo: script(t, "rondo", `
echo '{"world":2,"bytes":64,"ms":2,"busbw":0.5}'
echo '{"world":2,"bytes":128,"ms":10}'`),
		Python: script(t, "python", `
echo '{"world":2,"bytes":64,"ms":3,"busbw":0.25}'
echo '{"world":2,"bytes":128,"ms":5}'`),
		Worlds: "2", Sizes: "64,128", Link: "tcp", Turns: 2, Seconds: 0.1,
	}
}

func TestRun(t *testing.T) {
	c := testConfig(t)
	var out bytes.Buffer
	if err := run(t.Context(), c, &out, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" 64     2.000     3.000", " 1.50x\n", " 0.50x\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	c.AtLeast = 0.8
	err := run(t.Context(), c, &out, &out)
	if err == nil || err.Error() != "below 0.80x of Gloo: world 2, 128 bytes 0.50x" {
		t.Errorf("-at-least 0.8: %v", err)
	}
}

func TestValidate(t *testing.T) {
	c := testConfig(t)
	if err := c.validate(); err != nil {
		t.Error(err)
	}
	for want, wrong := range map[string]func(*config){
		"-link memory: its ranks are goroutines": func(c *config) { c.Link = "memory" },
		"-turns 0: must be 1 to 1000":            func(c *config) { c.Turns = 0 },
	} {
		c := testConfig(t)
		wrong(&c)
		if err := c.validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A side that fails, or that prints something else, ends the comparison with its command.
func TestSidesThatFail(t *testing.T) {
	for text, want := range map[string]string{
		"exit 3":                               "exit status 3",
		`echo '{"world":2,"bytes":64,"ms":2}'`: "it printed 1 rows, want 2",
		`echo '{"world":2,"bytes":64,"ms":2} {"world":2,"bytes":128}'`: "a row without a time",
		`echo '{"world":2,"bytes":64,"ms":2} {"world":2,"bytes":256,"ms":1}'`: "row 2: Rondo has " +
			"256 bytes on 2 ranks, Gloo 128 on 2",
	} {
		c := testConfig(t)
		c.Rondo = script(t, "rondo", text)
		var out bytes.Buffer
		err := run(t.Context(), c, &out, &out)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
