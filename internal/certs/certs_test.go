package certs_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthserver "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
	"rondo/internal/transcript"
)

const patience = 20 * time.Second

// log is a server's log.
type log struct{ transcript.Text }

// await waits until the log contains a word. The client may learn of its refusal earlier.
func (l *log) await(t *testing.T, word string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(l.String(), word) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the server did not say %q: %s", word, l)
		}
	}
}

// serve starts a server; with nil creds it has no TLS.
func serve(
	t *testing.T, creds credentials.TransportCredentials, options ...grpc.ServerOption,
) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	server := grpc.NewServer(append(options, grpc.Creds(creds))...)
	healthpb.RegisterHealthServer(server, healthserver.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func dial(t *testing.T, address string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func ask(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func load(t *testing.T, dir string) *certs.Identity {
	t.Helper()
	identity, err := certs.Load(dir, certstest.Job, certs.Worker)
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// TestWhoIsRefused: each end refuses invalid peers, and both ends report why.
func TestWhoIsRefused(t *testing.T) {
	ours, foreign := certstest.New(t), certstest.New(t)
	good := ours.Good(t.TempDir())
	other := foreign.Good(t.TempDir())
	expired := ours.Issue(t.TempDir(), time.Now().Add(-time.Hour), certs.Name)
	misnamed := ours.Issue(t.TempDir(), time.Now().Add(time.Hour), "elsewhere")
	for _, c := range []struct {
		name           string
		server, client string   // folders; empty: without TLS
		words          []string // in the client's error; nil: it is served
		said           []string // in the server's log
	}{
		{"both good", good, good, nil, nil},
		{"the server is of another authority", other, good,
			[]string{"is not signed by the authority in", good + "/ca.crt"}, nil},
		{"the client is of another authority", good, other,
			[]string{"is not signed by the authority in", other + "/ca.crt"}, nil},
		{"the server has expired", expired, good, []string{"is valid from", "renew it"}, nil},
		{"the client has expired", good, expired,
			[]string{"it refuses the certificate of this process", expired + "/tls.crt"},
			[]string{"127.0.0.1", "is valid from", "renew it"}},
		{"the server has another name", misnamed, good, []string{"elsewhere", "rondo"}, nil},
		{"the client speaks no TLS", good, "", []string{"connection"},
			[]string{"127.0.0.1", "does not speak TLS: give it --tls"}},
		{"the server speaks no TLS", "", good, []string{"does not speak TLS: give it --tls"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			heard := &log{}
			var serving credentials.TransportCredentials
			calling := insecure.NewCredentials()
			if c.server != "" {
				serving = load(t, c.server).ServerCredentials(slog.New(slog.NewTextHandler(heard,
					nil)))
			}
			if c.client != "" {
				calling = load(t, c.client).ClientCredentials(certs.Name, nil)
			}
			address := serve(t, serving)
			err := ask(t, dial(t, address, calling))
			if (err == nil) != (c.words == nil) {
				t.Fatalf("the client: %v", err)
			}
			for _, word := range c.words {
				if text := status.Convert(err).Message(); !strings.Contains(text, word) {
					t.Errorf("the client's error does not say %q: %s", word, text)
				}
			}
			if c.words != nil && c.client != "" && !strings.Contains(err.Error(), address) {
				t.Errorf("the client's error does not name the server %s: %v", address, err)
			}
			for _, word := range c.said {
				heard.await(t, word)
			}
		})
	}
}

// TestRotation: changed files are used for the next connection; existing connections stay.
func TestRotation(t *testing.T) {
	before, after := certstest.New(t), certstest.New(t)
	serverDir, clientDir := before.Good(t.TempDir()), before.Good(t.TempDir())
	client := load(t, clientDir)
	heard := &log{}
	address := serve(t, load(t, serverDir).ServerCredentials(slog.New(slog.NewTextHandler(heard,
		nil))))
	old := dial(t, address, client.ClientCredentials(certs.Name, nil))
	if err := ask(t, old); err != nil {
		t.Fatal(err)
	}
	after.Good(serverDir)
	if err := ask(t, dial(t, address, client.ClientCredentials(certs.Name, nil))); err == nil {
		t.Error("a client of the old authority is served by the new one")
	}
	// A folder that is being written is ignored.
	if err := os.WriteFile(filepath.Join(clientDir, certs.CertFile), []byte("half"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, old); err != nil {
		t.Errorf("the connection did not outlive the rotation: %v", err)
	}
	// So is a certificate of another job, and the log says so.
	after.Names = certstest.All("other")
	after.Good(serverDir)
	for range 2 {
		_ = ask(t, dial(t, address, client.ClientCredentials(certs.Name, nil)))
	}
	after.Names = certstest.All(certstest.Job)
	heard.await(t, "is not for a worker of job demo")
	heard.await(t, "valid until")
	if said := strings.Count(heard.String(), "is not used"); said != 1 {
		t.Errorf("it was said %d times", said)
	}
	after.Good(clientDir)
	if err := ask(t, dial(t, address, client.ClientCredentials(certs.Name, nil))); err != nil {
		t.Errorf("with the new files on both ends: %v", err)
	}
	if err := ask(t, old); err != nil {
		t.Errorf("the connection did not outlive the rotation: %v", err)
	}
}

func TestWrongFolders(t *testing.T) {
	ours := certstest.New(t)
	for _, c := range []struct {
		name   string
		change func(dir string) error
		words  string
	}{
		{"no key", func(dir string) error {
			return os.Remove(filepath.Join(dir, certs.KeyFile))
		}, certs.KeyFile},
		{"another key", func(dir string) error {
			key, err := os.ReadFile(filepath.Join(ours.Good(t.TempDir()), certs.KeyFile))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, certs.KeyFile), key, 0o600)
		}, "private key does not match"},
		{"no authority", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, certs.TrustFile), []byte("none"), 0o600)
		}, "has no certificate"},
		{"another authority", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, certs.TrustFile), certstest.New(t).PEM(), 0o600)
		}, "is not signed by a certificate in ca.crt"},
		{"no folder", os.RemoveAll, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := ours.Good(t.TempDir())
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			_, err := certs.Load(dir, certstest.Job, certs.Worker)
			if err == nil || !strings.Contains(err.Error(), c.words) ||
				!strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: want one line with %q and the folder", err, c.words)
			}
		})
	}
}

// TestAddressWithoutName: a server at an IP address that its certificate lacks is refused, as one
// with another name is. So is a process of a job where etcd should be.
func TestAddressWithoutName(t *testing.T) {
	ours := certstest.New(t)
	client := load(t, ours.Good(t.TempDir()))
	jobs := load(t, ours.Good(t.TempDir()))
	ours.Names = nil                                                                // of etcd
	address := serve(t, member(t, ours.Member(t.TempDir())).ServerCredentials(nil)) // 127.0.0.1
	if err := ask(t, dial(t, address, client.ClientCredentials("", nil))); err != nil {
		t.Errorf("the address in the certificate: %v", err)
	}
	err := ask(t, dial(t, serve(t, jobs.ServerCredentials(nil)),
		client.ClientCredentials("", nil)))
	if err == nil || !strings.Contains(err.Error(), "rondo://test/demo/worker") ||
		!strings.Contains(err.Error(), "and not for etcd") {
		t.Errorf("a process of a job instead of etcd: %v", err)
	}
	other := t.TempDir()
	ours.IssueFor(filepath.Join(other, certs.EtcdFolder), time.Now().Add(time.Hour),
		[]net.IP{net.IPv4(127, 0, 0, 9)}, certs.Name)
	address = serve(t, member(t, other).ServerCredentials(nil))
	err = ask(t, dial(t, address, client.ClientCredentials("", nil)))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.9, not 127.0.0.1") {
		t.Errorf("another address: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: client.Client("")}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := (&http.Client{Transport: transport}).Do(request); err == nil {
		_ = answer.Body.Close()
		t.Error("another address is accepted by a client of HTTP")
	} else if !strings.Contains(err.Error(), "127.0.0.9, not 127.0.0.1") {
		t.Errorf("another address by HTTP: %v", err)
	}
}

// TestKeyUsage: a certificate for servers alone is no client's, and the other way round.
func TestKeyUsage(t *testing.T) {
	ours := certstest.New(t)
	good := load(t, ours.Good(t.TempDir()))
	for use, words := range map[x509.ExtKeyUsage]string{
		x509.ExtKeyUsageServerAuth: "it refuses the certificate of this process",
		x509.ExtKeyUsageClientAuth: "incompatible key usage"} {
		only := load(t, ours.IssueUse(t.TempDir(), use, certs.Name))
		server, client := good, only
		if use == x509.ExtKeyUsageClientAuth {
			server, client = only, good
		}
		err := ask(t, dial(t, serve(t, server.ServerCredentials(nil)),
			client.ClientCredentials(certs.Name, nil)))
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want %q", use, err, words)
		}
	}
}
