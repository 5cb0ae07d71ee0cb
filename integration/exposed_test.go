package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rondo/internal/port"
)

// TestOpenToOtherMachines: a process that other machines would reach, without TLS and without a
// decision for that, does not start.
func TestOpenToOtherMachines(t *testing.T) {
	t.Parallel()
	etcd := port.ForTest(t).Address() // nobody listens there, and nobody is asked
	place := []string{"--etcd", etcd, "--job", "rondo"}
	member := []string{"etcd", "--name", "a", "--peers", "a=127.0.0.1:2380", "--data", t.TempDir()}
	for _, c := range []struct {
		command string
		args    []string
		flag    string
	}{
		{"worker", append(place, "--listen", "0.0.0.0:0"), "--listen 0.0.0.0:0"},
		{"worker", append(place, "--listen", ":7000"), "--listen :7000"},
		{"worker", append(place, "--health", ":7001"), "--health :7001"},
		{"worker", []string{"--etcd", "192.0.2.1:2379", "--job", "rondo", "--listen",
			"[::]:7000"}, "--listen [::]:7000"},
		{"coordinator", append(place, "--listen", "host.invalid:7000"),
			"--listen host.invalid:7000"},
		{"coordinator", append(place, "--health", "192.0.2.1:7001"), "--health 192.0.2.1:7001"},
		{"rondo", append([]string{"observe", "--listen", ":8080"}, place...), "--listen :8080"},
		{"rondo", append([]string{"train", "--dashboard", "0.0.0.0:0"}, small()...),
			"--dashboard 0.0.0.0:0"},
		{"rondo", append(member, "--listen", "0.0.0.0"), "--listen 0.0.0.0:2379"},
		{"rondo", append(member, "--health", ":2381"), "--health :2381"},
	} {
		code, _, stderr := runCommand(t, filepath.Join(binaries, c.command), c.args...)
		oneLine(t, code, 2, stderr, c.flag+" is open to other machines", "--insecure")
	}
}

// TestSeveralMachinesEncrypted: certificates, etcd, a job and a worker of its own, by the commands
// of the README; a worker with certificates of its own making is not let in.
func TestSeveralMachinesEncrypted(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "certs")
	foreign := filepath.Join(t.TempDir(), "certs")
	for _, dir := range []string{folder, foreign} {
		if code, _, stderr := run(t, "certs", "--dir", dir, "--hosts", "127.0.0.1",
			"--job", "tls"); code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	client, peer, health := port.ForTest(t), port.ForTest(t), port.ForTest(t)
	launch(t, nil, environment(t), filepath.Join(binaries, "rondo"), "etcd", "--name", "a",
		"--peers", "a="+peer.Address(), "--data", t.TempDir(), "--client-port",
		fmt.Sprint(client.Number()), "--health", health.Address(), "--tls", folder)
	place := []string{"--etcd", client.Address(), "--job", "tls"}
	ours := slices.Concat(place, []string{"--tls", folder})
	job := start(t, append(append([]string{"train"}, ours...), small("--workers", "2",
		"--local-workers", "1", "--link", "tcp")...)...)
	worker := launch(t, nil, environment(t),
		append([]string{filepath.Join(binaries, "worker")}, ours...)...)
	for words, tls := range map[string][]string{
		"is not signed by the authority in": {"--tls", foreign},
		"did not answer":                    nil,
		"it needs the URI rondo://NAMESPACE/tls/worker; rondo certs --job tls makes one": {"--tls",
			filepath.Join(folder, "etcd")},
	} {
		stranger := launch(t, nil, environment(t), slices.Concat(
			[]string{filepath.Join(binaries, "worker")}, place, tls)...)
		code, stderr := stranger.exitCode(), stranger.stderr.String()
		if code != 1 || !strings.Contains(stderr, words) {
			t.Errorf("a stranger with %v: exit code %d, want %q: %s", tls, code, words, stderr)
		}
	}
	if n := len(named(job.succeed(), "step")); n != 20 {
		t.Errorf("%d steps, want 20", n)
	}
	if code := worker.exitCode(); code != 0 {
		t.Errorf("the worker: exit code %d: %s", code, worker.stderr)
	}
}
