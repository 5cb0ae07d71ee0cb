package integration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
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
	// renewedLife is that of certificates which are renewed every renewEvery.
	renewedLife = 2 * time.Minute
	renewEvery  = 20 * time.Second
)

// TestCertificatesRotate: a job trains with certificates of two minutes, which are renewed again
// and again; then their authority is replaced, with both trusted for a while, and they are renewed
// once more. No step is lost. A watcher whose certificate expires, and one of the old authority,
// are out within a minute.
func TestCertificatesRotate(t *testing.T) {
	t.Parallel()
	s, began := certify(t, "rotate", filepath.Join(t.TempDir(), "certs")), time.Now()
	renewed := s.renewAgainAndAgain()
	s.start(allowance{tolerance: 1e-3, limit: 2 * runTimeout}, "--restarts", "0",
		"--lease-ttl", "10s", // the etcd has one member, which starts again for its authority
		"--inject", "delay rank=* for=100ms phase=forward times=0")
	s.untilStep(3)
	user := filepath.Join("jobs", s.job, string(certs.User))
	authority := certstest.Open(t, s.certs)
	authority.Names = []certs.Process{{Namespace: s.order.Namespace, Job: s.job, Role: certs.User}}
	expiry := time.Now().Add(shortLife)
	expired := s.watch(authority.Issue(t.TempDir(), expiry, certs.Name))
	for out := false; !out; {
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
	for !testing.Short() && time.Since(began) < renewedLife+renewEvery {
		s.untilMore(10) // past the ends of the first certificates
	}
	renewed()

	was := filepath.Join(t.TempDir(), "was")
	if err := os.CopyFS(was, os.DirFS(s.certs)); err != nil {
		t.Fatal(err)
	}
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

// renewAgainAndAgain gives certificates a life of renewedLife, and renews them every renewEvery.
// stop renews them a last time, for as long as rondo certs does.
func (s *secured) renewAgainAndAgain() (stop func()) {
	s.t.Helper()
	const life = 90 * 24 * time.Hour // of what Issue makes
	issue := func(lasts time.Duration) {
		_, err := certs.Issue(s.certs, s.order, time.Now().Add(lasts-life))
		if err != nil {
			s.t.Error(err)
		}
	}
	issue(renewedLife)
	ctx, cancel := context.WithCancel(s.t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(renewEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				issue(renewedLife)
			case <-ctx.Done():
				return
			}
		}
	})
	s.t.Cleanup(wait.Wait)
	s.t.Cleanup(cancel)
	return func() {
		cancel()
		wait.Wait()
		issue(life)
	}
}

// TestRevokedWorker: a worker whose certificate is revoked is put out of the ring and stays out.
// The others go on without a lost step, with new certificates. The log says how soon it is out: on
// a busy machine that may take longer than the minute that TestRevoked of package certs checks.
func TestRevokedWorker(t *testing.T) {
	t.Parallel()
	s := secure(t, "revoke", filepath.Join(t.TempDir(), "certs"),
		allowance{tolerance: 1e-3, limit: 2 * runTimeout}, "--workers", "3", "--local-workers", "2",
		"--restarts", "0", "--lease-ttl", "10s", "--inject", paced)
	authority := certstest.Open(t, s.certs)
	authority.Names = []certs.Process{{Namespace: s.order.Namespace, Job: s.job,
		Role: certs.Worker}}
	own := authority.Issue(t.TempDir(), time.Now().Add(time.Hour), certs.Name)
	launch(t, nil, environment(t), slices.Concat([]string{filepath.Join(binaries, "worker"),
		"--etcd", s.etcd.Address(), "--job", s.job, "--tls", own}, trusting())...)
	s.untilRing(3)
	s.untilMore(3)
	code, _, stderr := run(t, "certs", "--dir", s.certs, "--hosts", "127.0.0.1", "--revoke",
		filepath.Join(own, certs.CertFile))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	revoked := time.Now()
	for ring := 3.0; ring != 2; {
		ring = s.until("a ring", func(e event) bool {
			return e.name() == "generation"
		}).number("world_size")
	}
	t.Logf("out %v after its certificate was revoked", time.Since(revoked).Round(time.Second))
	s.awaitEtcd(own, false)
	s.untilMore(20)
	if last := named(s.stop(), "generation"); last[len(last)-1].number("world_size") != 2 {
		t.Error("the worker came back")
	}
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
