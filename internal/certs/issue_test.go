package certs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rondo/internal/certs"
)

// TestIssue: a folder of Issue serves both ends, on the hosts that it names; issuing again renews
// under the same authority, which running processes take up.
func TestIssue(t *testing.T) {
	dir, later := t.TempDir(), time.Now()
	if _, err := certs.Issue(dir, []string{"host-a", "192.0.2.7"}, later); err != nil {
		t.Fatal(err)
	}
	identity := load(t, dir)
	address := serve(t, identity.ServerCredentials(nil))
	for name, words := range map[string]string{certs.Name: "", "": "", "host-a": "",
		"192.0.2.7": "", "host-b": "host-b", "192.0.2.8": "192.0.2.8"} {
		err := ask(t, dial(t, address, load(t, dir).ClientCredentials(name, nil)))
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("as %q: %v", name, err)
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, certs.TrustFile))
	if err != nil {
		t.Fatal(err)
	}
	until, err := certs.Issue(dir, []string{"host-b"}, later)
	if err != nil || until.Before(later.Add(24*time.Hour)) {
		t.Fatalf("valid until %v, %v", until, err)
	}
	after, err := os.ReadFile(filepath.Join(dir, certs.TrustFile))
	if err != nil || string(after) != string(before) {
		t.Errorf("another authority, %v", err)
	}
	if err := ask(t, dial(t, address, identity.ClientCredentials("host-b", nil))); err != nil {
		t.Errorf("the new host: %v", err)
	}
	for _, name := range []string{certs.KeyFile, certs.AuthorityKeyFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := certs.Issue(dir, nil, later.Add(366*24*time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "was valid until") {
		t.Errorf("an authority that has expired: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, certs.AuthorityKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.Issue(dir, nil, later); err == nil ||
		!strings.Contains(err.Error(), certs.AuthorityKeyFile) {
		t.Errorf("an authority without its key: %v", err)
	}
}

func TestExposed(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:1": false, "127.9.9.9:1": false,
		"[::1]:1": false, "localhost:1": false, ":1": true, "0.0.0.0:1": true, "[::]:1": true,
		"192.0.2.1:1": true, "host:1": true, "[::ffff:127.0.0.1]:1": false, "nonsense": true} {
		if got := certs.Exposed(address); got != want {
			t.Errorf("%s: %t, want %t", address, got, want)
		}
		if err := certs.CheckListener("listen", address, false); (err != nil) != want {
			t.Errorf("%s, undecided: %v", address, err)
		}
		if err := certs.CheckListener("listen", address, true); err != nil {
			t.Errorf("%s, decided: %v", address, err)
		}
	}
}
