package certs_test

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
)

// outWithin is how soon a connection ends whose certificate is not valid any more.
const outWithin = time.Minute

// talk is a connection over which a byte comes to each end every five seconds. Each channel
// receives why its end has stopped.
type talk struct{ server, client chan error }

func newTalk(t *testing.T, serving, calling credentials.TransportCredentials) talk {
	a, b := net.Pipe()
	var wait sync.WaitGroup
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
		wait.Wait()
	})
	end := func(conn net.Conn, err error, ended chan<- error) {
		if err != nil {
			ended <- err
			return
		}
		done := make(chan struct{})
		wait.Go(func() {
			tick := time.NewTicker(5 * time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_, _ = conn.Write([]byte("x")) // Read says what is wrong
				case <-done:
					return
				}
			}
		})
		for one := make([]byte, 1); err == nil; {
			_, err = conn.Read(one)
		}
		close(done)
		_ = conn.Close()
		ended <- err
	}
	k := talk{make(chan error, 1), make(chan error, 1)}
	wait.Go(func() {
		conn, _, err := serving.ServerHandshake(a)
		end(conn, err, k.server)
	})
	wait.Go(func() {
		conn, _, err := calling.ClientHandshake(t.Context(), certs.Name, b)
		end(conn, err, k.client)
	})
	return k
}

// lives checks that a connection has not ended after some time.
func (k talk) lives(t *testing.T) {
	t.Helper()
	time.Sleep(2 * outWithin)
	select {
	case err := <-k.server:
		t.Fatalf("the server's end: %v, the client's: %v", err, <-k.client)
	case err := <-k.client:
		t.Fatalf("the client's end: %v, the server's: %v", err, <-k.server)
	default:
	}
}

// TestOwnCertificateEnds: a connection ends soon after its client's certificate, and soon before it
// if the client has a new one, so that no call is made under the old.
func TestOwnCertificateEnds(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ours := certstest.New(t)
			expiry := time.Now().Add(5 * time.Minute)
			folder := ours.Issue(t.TempDir(), expiry, certs.Name)
			k := newTalk(t, load(t, ours.Good(t.TempDir())).ServerCredentials(nil),
				load(t, folder).ClientCredentials(certs.Name, nil))
			k.lives(t)
			ended, words := k.server, "renew it"
			if renewed {
				ours.Good(folder)
				ended, words = k.client, "has a new certificate"
			}
			err := <-ended
			late := time.Since(expiry)
			if !strings.Contains(err.Error(), words) || (late < 0) != renewed ||
				late.Abs() > outWithin {
				t.Errorf("renewed %t: %v, %v after the expiry", renewed, err, late)
			}
		})
	}
}

// TestRevoked: a certificate that is revoked ends its connections and opens no other, as a client's
// and as a server's. The one that has taken its place serves.
func TestRevoked(t *testing.T) {
	for _, role := range []certs.Role{certs.Worker, certs.Coordinator} {
		synctest.Test(t, func(t *testing.T) {
			tree, stolen := t.TempDir(), t.TempDir()
			issue := func(revoke ...string) {
				t.Helper()
				_, err := certs.Issue(tree, certs.Order{Jobs: []string{"book"}, Revoke: revoke},
					time.Now())
				if err != nil {
					t.Fatal(err)
				}
			}
			issue()
			folder := filepath.Join(tree, "jobs", "book", string(role))
			if err := os.CopyFS(stolen, os.DirFS(folder)); err != nil {
				t.Fatal(err)
			}
			// The worker calls the coordinator. refused receives why the other one ends.
			between := func(folder string) (k talk, refused <-chan error) {
				from := map[certs.Role]string{certs.Worker: tree, certs.Coordinator: tree}
				from[role] = folder
				k = newTalk(t, of(t, from[certs.Coordinator], "book", certs.Coordinator).
					ServerCredentials(nil, certs.Worker), of(t, from[certs.Worker], "book",
					certs.Worker).ClientCredentials(certs.Name, nil, certs.Coordinator))
				if role == certs.Worker {
					return k, k.server
				}
				return k, k.client
			}
			k, refused := between(stolen)
			k.lives(t)
			issue(filepath.Join(folder, certs.CertFile))
			since := time.Now()
			if err := <-refused; !strings.Contains(err.Error(), "it is revoked") ||
				time.Since(since) > outWithin {
				t.Errorf("%s, %v after it was revoked: %v", role, time.Since(since), err)
			}
			issue() // the list stays
			_, refused = between(stolen)
			if err := <-refused; !strings.Contains(err.Error(), "it is revoked") {
				t.Errorf("%s, again: %v", role, err)
			}
			k, _ = between(folder)
			k.lives(t)
		})
	}
}

// TestRevoke: a list goes to all folders of its authority, and names what cannot be revoked.
func TestRevoke(t *testing.T) {
	tree, foreign := t.TempDir(), t.TempDir()
	issue := func(in string, revoke ...string) error {
		_, err := certs.Issue(in, certs.Order{Revoke: revoke}, time.Now())
		return err
	}
	for _, in := range []string{tree, foreign} {
		if err := issue(in); err != nil {
			t.Fatal(err)
		}
	}
	worker := filepath.Join("jobs", "rondo", "worker", certs.CertFile)
	for file, words := range map[string]string{
		filepath.Join(foreign, worker):                        "whose key is in --dir",
		filepath.Join(tree, certs.KeyFile):                    "no such file",
		filepath.Join(tree, "jobs/rondo/user", certs.KeyFile): "malformed",
	} {
		if err := issue(tree, file); err == nil || !strings.Contains(err.Error(), words) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%v, want %q and the file", err, words)
		}
	}
	peers := filepath.Join(certs.PeerFolder, certs.CertFile)
	if err := issue(tree, filepath.Join(tree, peers)); err != nil {
		t.Fatal(err)
	}
	has := func(folder string) bool {
		_, err := os.Stat(filepath.Join(tree, folder, certs.RevokedFile))
		return err == nil
	}
	if !has(certs.PeerFolder) || has(certs.EtcdFolder) || has("") {
		t.Error("a list for another authority than the peers'")
	}
	old := filepath.Join(t.TempDir(), certs.CertFile)
	text, err := os.ReadFile(filepath.Join(tree, worker))
	if err == nil {
		err = os.WriteFile(old, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := issue(tree, old); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{"", certs.EtcdFolder, "jobs/rondo/observer"} {
		if !has(folder) {
			t.Errorf("no list in folder %q", folder)
		}
	}
	list := filepath.Join(tree, "jobs/rondo/worker", certs.RevokedFile)
	der, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := x509.ParseRevocationList(der); err != nil ||
		len(parsed.RevokedCertificateEntries) != 1 {
		t.Errorf("a certificate that is revoked twice: %+v, %v", parsed, err)
	}
	listGone(t, tree, list)
	if err := os.WriteFile(list, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.Load(tree, "rondo", certs.Worker); err == nil ||
		!strings.Contains(err.Error(), list) {
		t.Errorf("a list that cannot be read: %v", err)
	}
}

// listGone removes a worker's list of revoked certificates, which is logged once.
func listGone(t *testing.T, tree, list string) {
	t.Helper()
	var log bytes.Buffer
	identity := of(t, tree, "rondo", certs.Worker)
	_ = identity.ServerCredentials(slog.New(slog.NewTextHandler(&log, nil)))
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := identity.Server().GetCertificate(nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), certs.RevokedFile+" is gone"); n != 1 {
		t.Errorf("that a list is gone is logged %d times: %s", n, &log)
	}
}
