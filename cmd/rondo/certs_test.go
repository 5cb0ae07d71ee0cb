package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCerts: the command prints which files to copy to which machine. A renewal needs only the
// hosts.
func TestCerts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "own")
	for _, args := range [][]string{{"--namespace", "here", "--job", "book"}, nil} {
		var out strings.Builder
		c := root()
		c.SetOut(&out)
		c.SetArgs(append([]string{"certs", "--dir", dir, "--hosts", "host-b"}, args...))
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		for _, words := range []string{"rsync -a --exclude ca.key " + dir + " HOST:\n",
			"rsync -a " + dir + "/jobs/JOB/worker/ HOST:own/\n"} {
			if !strings.Contains(out.String(), words) {
				t.Errorf("%v: %q is not in %q", args, words, out.String())
			}
		}
	}
}
