//go:build !wasm

package worker_test

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/protobuf/proto"

	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/worker"
)

// secureEtcd starts an etcd that accepts only certificates of the folder's authority.
func secureEtcd(t *testing.T, dir string) (endpoint string) {
	t.Helper()
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.UnsafeNoFsync = t.TempDir(), "panic", true
	secure := &config.ClientTLSInfo
	secure.CertFile = filepath.Join(dir, certs.CertFile)
	secure.KeyFile = filepath.Join(dir, certs.KeyFile)
	secure.TrustedCAFile = filepath.Join(dir, certs.TrustFile)
	secure.ClientCertAuth = true
	client := []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	peer := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(jobTimeout):
		t.Fatal("etcd did not become ready")
	}
	return server.Clients[0].Addr().String()
}

// TestOverTLS: a job trains with mutual TLS between its processes and etcd. A process without a
// valid certificate cannot take part.
func TestOverTLS(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
	defer cancel()
	authority := certstest.New(t)
	spec := small()
	authority.Names = certstest.All(spec.Job)
	good := authority.Good(t.TempDir())
	etcd := secureEtcd(t, filepath.Join(authority.Member(t.TempDir()), certs.EtcdFolder))
	where := meet.Config{Etcd: []string{etcd}, Job: spec.Job, TLS: good, Role: certs.User,
		Patience: 2 * time.Second}
	store, err := where.Store(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	text, err := proto.Marshal(spec)
	if err == nil {
		_, _, err = store.PutSpec(ctx, text)
	}
	if err != nil {
		t.Fatal(err)
	}
	stranger := certstest.New(t)
	stranger.Names = authority.Names
	foreign := stranger.Good(t.TempDir())
	for folder, words := range map[string]string{
		"":      "did not answer",
		foreign: "is not signed by the authority in " + foreign,
	} {
		stranger := where
		stranger.TLS = folder
		_, err := worker.Run(ctx, worker.Config{Config: stranger})
		if err == nil || !strings.Contains(err.Error(), words) ||
			!strings.Contains(err.Error(), where.Etcd[0]) {
			t.Errorf("with the certificate in %q: %v; want %q", folder, err, words)
		}
	}
	results := make(chan error, spec.Workers+1)
	for range spec.Workers {
		go func() {
			_, err := worker.Run(ctx, worker.Config{Config: where})
			results <- err
		}()
	}
	go func() {
		_, err := coordinator.Run(ctx, coordinator.Config{Config: where})
		results <- err
	}()
	client, err := where.Client(store, 0)
	if err != nil {
		t.Fatal(err)
	}
	var last *rondov1.Event
	err = client.Watch(ctx, func(e *rondov1.Event) error {
		last = e
		return nil
	})
	if err != nil || last.GetDone().GetStep() != spec.Steps {
		t.Errorf("the last event is %v, %v", last, err)
	}
	for range spec.Workers + 1 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
