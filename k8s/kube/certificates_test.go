package kube

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/internal/certs"
)

// secretFiles writes a Secret's data to a folder, as a pod mounts it, and returns the folder.
func (s *apiServer) secretFiles(t *testing.T, name string) string {
	t.Helper()
	data := s.object(t, "secrets/"+name).Object["data"].(map[string]any)
	folder := t.TempDir()
	for file, text := range data {
		content, err := base64.StdEncoding.DecodeString(text.(string))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(folder, file), content, 0o600))
	}
	return folder
}

// certificate returns the certificate in a Secret.
func (s *apiServer) certificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.secretFiles(t, name), certs.CertFile))
	check(t, err)
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	check(t, err)
	return cert
}

// secretChanges returns the Secrets that were written since the last call.
func (s *apiServer) secretChanges() []string {
	var written []string
	for _, change := range s.changes() {
		_, name, is := strings.Cut(change, " secrets/")
		if is && !strings.HasSuffix(name, " owners") {
			written = append(written, name)
		}
	}
	slices.Sort(written)
	return written
}

// age replaces the certificate in a Secret by one that was signed days ago.
func (s *apiServer) age(t *testing.T, name, authority string, days int) {
	t.Helper()
	now := time.Now()
	folder := s.secretFiles(t, authority)
	var pair certs.Pair
	var err error
	for file, to := range map[string]*[]byte{certs.CertFile: &pair.Cert,
		certs.KeyFile: &pair.Key} {
		*to, err = os.ReadFile(filepath.Join(folder, file))
		check(t, err)
	}
	by, err := certs.ParseAuthority(pair, now)
	check(t, err)
	text, err := os.ReadFile(filepath.Join(s.secretFiles(t, name), certs.CertFile))
	check(t, err)
	leaf, err := certs.LeafOf(text)
	check(t, err)
	old, err := by.Sign(leaf, now.Add(-time.Duration(days)*24*time.Hour))
	check(t, err)
	data := s.object(t, "secrets/"+name).Object["data"].(map[string]any)
	s.mu.Lock()
	defer s.mu.Unlock()
	data[certs.CertFile] = base64.StdEncoding.EncodeToString(old.Cert)
	data[certs.KeyFile] = base64.StdEncoding.EncodeToString(old.Key)
}

// TestSubmitCertifies: where there is no cert-manager, submit makes the Secrets that the pods
// mount, for each process its own, under authorities that later jobs of the namespace share.
func TestSubmitCertifies(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models")
	check(t, err)
	own := func(job string) []string {
		return []string{job + "-rondo-coordinator-tls", job + "-rondo-observer-tls",
			job + "-rondo-worker-tls"}
	}
	shared := []string{"rondo-ca", "rondo-etcd-peer-tls", "rondo-etcd-tls", "rondo-peer-ca"}
	want := func(names []string) {
		t.Helper()
		if got := s.secretChanges(); !slices.Equal(got, names) {
			t.Errorf("secrets %q were written, want %q", got, names)
		}
	}
	want(append(shared, own("song")...))
	for name, role := range map[string]certs.Role{"worker": certs.Worker,
		"coordinator": certs.Coordinator, "observer": certs.User} {
		folder := s.secretFiles(t, "song-rondo-"+name+"-tls")
		if _, err := certs.Load(folder, "song", role); err != nil {
			t.Error(err)
		}
		if uri := s.certificate(t, "song-rondo-"+name+"-tls").URIs[0].String(); uri !=
			"rondo://music/song/"+string(role) {
			t.Errorf("%s: %s", name, uri)
		}
	}
	etcd := s.certificate(t, "rondo-etcd-tls")
	if etcd.Subject.CommonName != certs.EtcdRoot || etcd.VerifyHostname("127.0.0.1") != nil ||
		etcd.VerifyHostname("rondo-etcd-2.rondo-etcd") != nil || len(etcd.URIs) > 0 {
		t.Errorf("etcd's certificate is for %s, %v, %v", etcd.Subject, etcd.DNSNames, etcd.URIs)
	}
	if peer := s.certificate(t, "rondo-etcd-peer-tls"); peer.CheckSignatureFrom(
		s.certificate(t, "rondo-peer-ca")) != nil || etcd.CheckSignatureFrom(
		s.certificate(t, "rondo-ca")) != nil {
		t.Error("certificates are not of their authorities")
	}

	_, err = s.submit(t, "--job=other", "--checkpoint-dir=pvc://models")
	check(t, err)
	want(own("other"))
	s.age(t, "rondo-etcd-tls", "rondo-ca", 40)
	s.age(t, "rondo-etcd-peer-tls", "rondo-peer-ca", 50)
	s.age(t, "other-rondo-worker-tls", "rondo-ca", 100)
	_, err = s.submit(t, "--job=third", "--checkpoint-dir=pvc://models")
	check(t, err)
	want(append([]string{"other-rondo-worker-tls", "rondo-etcd-peer-tls"}, own("third")...))
	if left := time.Until(s.certificate(t, "other-rondo-worker-tls").NotAfter); left < time.Hour {
		t.Errorf("the renewed certificate is valid for %v", left)
	}
	check(t, s.Delete(t.Context(), "third", Delete{Timeout: time.Minute, Say: func(string) {}}))
	if gone := s.secretChanges(); !slices.Equal(gone, own("third")) {
		t.Errorf("the job's secrets are not deleted: %q", gone)
	}

	s.mu.Lock()
	delete(s.objects, "/api/v1/namespaces/music/secrets/rondo-ca")
	s.mu.Unlock()
	_, err = s.submit(t, "--job=last", "--checkpoint-dir=pvc://models")
	check(t, err)
	want(slices.Sorted(slices.Values(slices.Concat(own("song"), own("other"), own("last"),
		[]string{"rondo-ca", "rondo-etcd-tls"}))))
}

// TestCertificatesOfOthers: Secrets that submit has not made are used as they are, and never signed
// for.
func TestCertificatesOfOthers(t *testing.T) {
	s := serveAPI(t)
	s.mu.Lock()
	for _, name := range []string{"song-rondo-worker-tls", "song-rondo-coordinator-tls",
		"song-rondo-observer-tls", "rondo-etcd-tls"} {
		s.put("/api/v1/namespaces/music/secrets/"+name, map[string]any{"apiVersion": "v1",
			"kind": "Secret", "metadata": map[string]any{"name": name}})
	}
	s.mu.Unlock()
	_, err := s.submit(t, "--job=song", "--checkpoint-dir=pvc://models")
	wants(t, err, "secret/rondo-etcd-peer-tls is missing, and rondo submit did not make secret/")
	_, err = s.submit(t, "--job=other", "--checkpoint-dir=pvc://models", "--etcd=etcd.infra:2379",
		"--tls")
	wants(t, err, "secret/other-rondo-worker-tls is missing, and only you know")
	s.mu.Lock()
	s.put("/api/v1/namespaces/music/secrets/rondo-etcd-peer-tls", map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
			"name": "rondo-etcd-peer-tls"}})
	s.mu.Unlock()
	s.changes()
	_, err = s.submit(t, "--job=song", "--checkpoint-dir=pvc://models")
	check(t, err)
	if written := s.secretChanges(); len(written) > 0 {
		t.Errorf("secrets of others were written: %q", written)
	}

	_, err = s.submit(t, "--job=plain", "--etcd=127.0.0.1:1", "--insecure")
	check(t, err)
	if written := s.secretChanges(); len(written) > 0 {
		t.Errorf("with --insecure: %q", written)
	}
}

// TestKeysOfBuckets: a Secret that lacks the file that workers read is told before anything is
// applied.
func TestKeysOfBuckets(t *testing.T) {
	s := serveAPI(t)
	keys := map[string]any{"AWS_ACCESS_KEY_ID": "eA=="}
	s.mu.Lock()
	s.put("/api/v1/namespaces/music/secrets/rondo-s3", map[string]any{"apiVersion": "v1",
		"kind": "Secret", "metadata": map[string]any{"name": "rondo-s3"}, "data": keys})
	s.mu.Unlock()
	submit := func(more ...string) error {
		_, err := s.submit(t, append([]string{"--job=song", "--checkpoint-dir=s3://models/x"},
			more...)...)
		return err
	}
	wants(t, submit(), "secret/rondo-s3 has no key credentials")
	if changes := s.changes(); len(changes) > 0 {
		t.Errorf("something was applied: %q", changes)
	}
	check(t, submit("--s3-identity"))
	check(t, submit("--s3-secret=later"))
	s.mu.Lock()
	keys["credentials"] = "eA=="
	s.mu.Unlock()
	check(t, submit())
}
