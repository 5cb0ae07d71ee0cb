package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
)

// TestIssue: the folders of Issue serve both ends of a job's connections, and etcd's members on the
// hosts that it names. Issuing again renews all under the same authority, which running processes
// take up.
func TestIssue(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	order := certs.Order{Hosts: []string{"host-a", "192.0.2.7"}, Namespace: "here",
		Jobs: []string{"book", "song"}}
	issue := func(o certs.Order, at time.Time) (time.Time, error) { return certs.Issue(dir, o, at) }
	if _, err := issue(order, now); err != nil {
		t.Fatal(err)
	}
	address := serve(t, member(t, dir).ServerCredentials(nil))
	worker := of(t, dir, "book", certs.Worker)
	for name, words := range map[string]string{certs.Name: "", "": "", "host-a": "",
		"192.0.2.7": "", "host-b": "host-b", "192.0.2.8": "192.0.2.8"} {
		err := ask(t, dial(t, address, worker.ClientCredentials(name, nil)))
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("as %q: %v", name, err)
		}
	}
	order.Hosts = []string{"host-a", certs.Name}
	if _, err := issue(order, now); err == nil || !strings.Contains(err.Error(), "--hosts rondo") {
		t.Errorf("a host with the name of jobs' processes: %v", err)
	}
	before := read(t, dir, certs.TrustFile)
	order.Hosts, order.Jobs = []string{"host-b"}, nil
	until, err := issue(order, now)
	if err != nil || until.Before(now.Add(24*time.Hour)) {
		t.Fatalf("valid until %v, %v", until, err)
	}
	if after := read(t, dir, certs.TrustFile); after != before {
		t.Error("another authority")
	}
	if err := ask(t, dial(t, address, worker.ClientCredentials("host-b", nil))); err != nil {
		t.Errorf("the new host: %v", err)
	}
	for _, name := range []string{"jobs/song/user/" + certs.KeyFile, certs.AuthorityKeyFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if _, err := issue(order, now.Add(366*24*time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "was valid until") {
		t.Errorf("an authority that has expired: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, certs.AuthorityKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := issue(order, now); err == nil ||
		!strings.Contains(err.Error(), certs.AuthorityKeyFile) {
		t.Errorf("an authority without its key: %v", err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func of(t *testing.T, dir, job string, role certs.Role) *certs.Identity {
	t.Helper()
	identity, err := certs.Load(dir, job, role)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// TestIssueAgain: Issue renews jobs in their namespace and makes no other, and a name that a
// certificate cannot say is refused before anything is written.
func TestIssueAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for _, step := range []struct {
		order certs.Order
		words string // in the error; empty: none
		want  string // the jobs after it
	}{
		{certs.Order{Namespace: "here", Jobs: []string{"book"}}, "", "book"},
		{certs.Order{}, "", "book"},
		{certs.Order{Jobs: []string{"song"}}, "", "book song"},
		{certs.Order{Namespace: "there"}, "is of namespace here, and not there", "book song"},
		{certs.Order{Jobs: []string{"fine", "a%2fb"}}, `job "a%2fb"`, "book song"},
		{certs.Order{Jobs: []string{".."}}, `job ".."`, "book song"},
		{certs.Order{Jobs: []string{"ü"}}, `job "ü"`, "book song"},
	} {
		_, err := certs.Issue(dir, step.order, now)
		if (err == nil) != (step.words == "") ||
			err != nil && !strings.Contains(err.Error(), step.words) {
			t.Errorf("%v: %v, want %q", step.order, err, step.words)
		}
		entries, err := os.ReadDir(filepath.Join(dir, "jobs"))
		if err != nil {
			t.Fatal(err)
		}
		var jobs []string
		for _, entry := range entries {
			jobs = append(jobs, entry.Name())
			cert := leafOf(t, dir, "jobs/"+entry.Name()+"/user")
			if uri := cert.URIs[0].String(); uri != "rondo://here/"+entry.Name()+"/user" {
				t.Errorf("after %v: %s", step.order, uri)
			}
		}
		if got := strings.Join(jobs, " "); got != step.want {
			t.Errorf("after %v: jobs %s, want %s", step.order, got, step.want)
		}
	}
	for _, namespace := range []string{"a..b", "a.", "a%b", "a b", "[::1"} {
		_, err := certs.Issue(t.TempDir(), certs.Order{Namespace: namespace}, now)
		if err == nil || !strings.Contains(err.Error(), "namespace") {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
	fresh := t.TempDir()
	if _, err := certs.Issue(fresh, certs.Order{}, now); err != nil {
		t.Fatal(err)
	}
	if uri := leafOf(t, fresh, "jobs/rondo/worker").URIs[0].String(); uri !=
		"rondo://default/rondo/worker" {
		t.Errorf("of no job: %s", uri)
	}
}

// TestFolders: a process finds its certificate in a tree, in whose root others may lie, and in a
// folder of its own.
func TestFolders(t *testing.T) {
	dir, alone := t.TempDir(), t.TempDir()
	if _, err := certs.Issue(dir, certs.Order{Jobs: []string{"book"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	worker := filepath.Join(dir, "jobs/book/worker")
	if err := os.CopyFS(alone, os.DirFS(worker)); err != nil {
		t.Fatal(err)
	}
	of(t, alone, "book", certs.Worker)
	certstest.New(t).Good(dir)
	of(t, dir, "book", certs.Worker)
	if err := os.Remove(filepath.Join(worker, certs.CertFile)); err != nil {
		t.Fatal(err)
	}
	_, err := certs.Load(dir, "book", certs.Worker)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(worker, certs.CertFile)) {
		t.Errorf("without its certificate in the tree: %v", err)
	}
}

func leafOf(t *testing.T, dir, folder string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, folder, certs.CertFile),
		filepath.Join(dir, folder, certs.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// TestWhoIsWho: a server takes callers of its own namespace and job with one of the roles that it
// wants, for the methods that are theirs; a client takes servers likewise.
func TestWhoIsWho(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	order := certs.Order{Namespace: "here", Jobs: []string{"book", "song"}}
	if _, err := certs.Issue(dir, order, time.Now()); err != nil {
		t.Fatal(err)
	}
	// The same authority, in another namespace.
	for _, name := range []string{certs.TrustFile, certs.AuthorityKeyFile} {
		err := os.WriteFile(filepath.Join(elsewhere, name), []byte(read(t, dir, name)), 0o600)
		if err != nil {
			t.Fatal(err)
		}
	}
	order.Namespace = "there"
	if _, err := certs.Issue(elsewhere, order, time.Now()); err != nil {
		t.Fatal(err)
	}
	lead := of(t, dir, "book", certs.Coordinator)
	const check = "/grpc.health.v1.Health/Check"
	address := serve(t, lead.ServerCredentials(nil, certs.Worker, certs.Observer),
		lead.Authorize(map[string][]certs.Role{check: {certs.Worker}})...)
	nothing := serve(t, lead.ServerCredentials(nil, certs.Roles()...), lead.Authorize(nil)...)
	const refused = "it refuses the certificate of this process"
	for _, c := range []struct {
		name, address string
		caller        *certs.Identity
		server        certs.Role // that it wants
		words         string     // in its error; empty: it is served
	}{
		{"a worker", address, of(t, dir, "book", certs.Worker), certs.Coordinator, ""},
		{"an observer", address, of(t, dir, "book", certs.Observer), certs.Coordinator,
			"refuses the caller"},
		{"a user", address, of(t, dir, "book", certs.User), certs.Coordinator, refused},
		{"a worker of another job", address, of(t, dir, "song", certs.Worker), "", refused},
		{"a worker of another namespace", address, of(t, elsewhere, "book", certs.Worker), "",
			refused},
		{"a member of etcd", address, member(t, dir), "", refused},
		{"a worker that wants a worker", address, of(t, dir, "book", certs.Worker), certs.Worker,
			"is for [rondo://here/book/coordinator], and not for rondo://here/book/worker"},
		{"a worker of another job that wants its leader", address,
			of(t, dir, "song", certs.Worker), certs.Coordinator,
			"and not for rondo://here/song/coordinator"},
		{"a method of nobody", nothing, of(t, dir, "book", certs.User), certs.Coordinator,
			"refuses the caller"},
	} {
		var wanted []certs.Role
		if c.server != "" {
			wanted = []certs.Role{c.server}
		}
		err := ask(t, dial(t, c.address, c.caller.ClientCredentials(certs.Name, nil, wanted...)))
		if (err == nil) != (c.words == "") ||
			err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want %q", c.name, err, c.words)
		}
	}
	for from, words := range map[string]string{
		filepath.Join(dir, "jobs/book/worker"): "it needs the URI rondo://NAMESPACE/book/observer",
		elsewhere + "/none":                    "no such file",
	} {
		_, err := certs.Load(from, "book", certs.Observer)
		if err == nil || !strings.Contains(err.Error(), words) ||
			!strings.HasSuffix(err.Error(), "rondo certs --job book makes one") &&
				!strings.HasSuffix(err.Error(), "rondo certs --job book makes one)") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", from, err, words)
		}
	}
}

func member(t *testing.T, dir string) *certs.Identity {
	t.Helper()
	identity, err := certs.LoadEtcd(dir, certs.EtcdFolder)
	if err != nil {
		t.Fatal(err)
	}
	return identity
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
