package main

import (
	"strings"
	"testing"
)

// TestEvalWithoutCache: values of the cache without one are refused before anything is read.
func TestEvalWithoutCache(t *testing.T) {
	for _, flag := range []string{"--cache-theta", "--cache-lambda"} {
		code, out, complaint := rondo(t, "eval", "--corpus", "nowhere.txt", flag, "0.2")
		if code != 2 || out != "" || !strings.Contains(complaint, flag+" is for --cache: give") {
			t.Errorf("%s: exit code %d, %s%s", flag, code, out, complaint)
		}
	}
}

// TestSearchOfOtherTasks: a beam is for texts that are searched, vectors for their descriptions.
func TestSearchOfOtherTasks(t *testing.T) {
	for _, c := range []struct{ flag, value, task, says string }{
		{"beam", "2", "lm", "--beam is for networks of --task translate or describe, and this"},
		{"length-penalty", "1", "classify", "--length-penalty is for networks of --task"},
		{"vectors", "x.npy", "translate", "--vectors is for networks of --task describe"},
		{"beam", "2", "describe", ""},
		{"rows", "2", "lm", ""},
	} {
		cmd := evalCommand()
		if err := cmd.Flags().Set(c.flag, c.value); err != nil {
			t.Fatal(err)
		}
		err := checkRead(cmd, c.task)
		if (err == nil) != (c.says == "") || err != nil && !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("--%s, task %s: %v; want %q", c.flag, c.task, err, c.says)
		}
	}
}
