package integration

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// outWithin is how soon a peer is out whose certificate is no longer valid.
	outWithin = time.Minute
	// shortLife is the rest of a certificate's life that expires during the test.
	shortLife = 10 * time.Second
)

// TestCertificatesRotate: while a job trains, its certificates are renewed again and again, and
// then their authority, with both trusted for a while, and then again. No step is lost. A watcher
// whose certificate expires, and one of the old authority, are out within a minute.
func TestCertificatesRotate(t *testing.T) {
	t.Parallel()
	s := secure(t, "rotate", filepath.Join(t.TempDir(), "certs"),
		allowance{tolerance: 1e-3, limit: 2 * runTimeout}, "--restarts", "0",
		"--lease-ttl", "10s", // the etcd has one member, which starts again for its authority
		"--inject", "delay rank=* for=100ms phase=forward times=0")
	s.untilStep(3)
	was := filepath.Join(t.TempDir(), "was")
	if err := os.CopyFS(was, os.DirFS(s.certs)); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join("jobs", s.job, string(certs.User))
	authority := certstest.Open(t, s.certs)
	authority.Names = []certs.Process{{Namespace: s.order.Namespace, Job: s.job, Role: certs.User}}
	expiry := time.Now().Add(shortLife)
	expired := s.watch(authority.Issue(t.TempDir(), expiry, certs.Name))
	for out := false; !out; {
		if _, err := certs.Issue(s.certs, s.order, time.Now()); err != nil {
			t.Fatal(err)
		}
		s.untilMore(10)
		select {
		case <-expired:
			out = true
		default:
			if time.Since(expiry) > outWithin {
				t.Fatalf("a certificate expired %v ago, and its watcher is still served",
					time.Since(expiry))
			}
		}
	}
	t.Logf("out %v after its certificate expired", time.Since(expiry).Round(time.Second))

	revoked := s.watch(filepath.Join(was, user))
	next := t.TempDir()
	if _, err := certs.Issue(next, s.order, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.replace(certs.TrustFile, s.certs, next) // both
	worker := filepath.Join("jobs", s.job, string(certs.Worker))
	s.awaitEtcd(filepath.Join(next, worker), true)
	s.untilMore(10)
	s.replace(certs.KeyFile, next)
	s.replace(certs.CertFile, next)
	s.untilMore(10)
	s.replace(certs.TrustFile, next)
	changed := time.Now()
	s.untilRing(2)
	select {
	case <-revoked:
		t.Logf("out %v after its authority", time.Since(changed).Round(time.Second))
	case <-time.After(outWithin - time.Since(changed)):
		t.Errorf("a watcher of the old authority is still served after %v", outWithin)
	}
	s.awaitEtcd(filepath.Join(was, worker), false)
	s.awaitEtcd(filepath.Join(next, worker), true)
	s.untilMore(20)
	if _, err := certs.Issue(next, s.order, time.Now()); err != nil { // to renew from now on
		t.Fatal(err)
	}
	s.replace(certs.KeyFile, next)
	s.replace(certs.CertFile, next)
	s.untilMore(10)
	s.stop()
}

// watch has the holder of a certificate watch the job, and closes the channel when they are put
// out.
func (s *secured) watch(folder string) <-chan struct{} {
	s.t.Helper()
	leader := s.view().Leader.Address
	conn, err := grpc.NewClient("passthrough:///"+leader,
		grpc.WithTransportCredentials(credentials.NewTLS(shows(s.t, folder))))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	stream, err := rondov1.NewCoordinatorClient(conn).Watch(ctx, &rondov1.WatchRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		s.t.Fatalf("with %s: %v", folder, err)
	}
	out := make(chan struct{})
	go func() {
		defer close(out)
		for err == nil {
			_, err = stream.Recv()
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-out
		_ = conn.Close()
	})
	return out
}

// replace gives a file of each folder of the job's certificates the content that it has in these
// trees, one after the other.
func (s *secured) replace(name string, trees ...string) {
	s.t.Helper()
	folders := []string{certs.EtcdFolder, certs.PeerFolder}
	for _, role := range certs.Roles() {
		folders = append(folders, filepath.Join("jobs", s.job, string(role)))
	}
	for _, folder := range folders {
		var content []byte
		for _, tree := range trees {
			text, err := os.ReadFile(filepath.Join(tree, folder, name))
			if err != nil {
				s.t.Fatal(err)
			}
			content = append(content, text...)
		}
		path := filepath.Join(s.certs, folder, name)
		err := os.WriteFile(path+".new", content, 0o600)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// awaitEtcd waits until etcd serves the holder of a certificate, or does not.
func (s *secured) awaitEtcd(folder string, serves bool) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(s.t.Context(), outWithin)
	defer cancel()
	for (s.writeClaim(ctx, shows(s.t, folder)) == nil) != serves {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("after %v, that etcd serves %s is not %t", outWithin, folder, serves)
		}
	}
}
