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
