// Package local is a cluster on one machine: an embedded etcd and worker processes. It links the
// etcd server, so the lean commands do not import it.
package local

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdStartTimeout bounds the start of the embedded etcd.
const etcdStartTimeout = 30 * time.Second

// Etcd is an embedded single-member etcd that listens on loopback.
type Etcd struct {
	server *embed.Etcd
}

// StartEtcd starts etcd with its data in dir, on free ports of 127.0.0.1.
func StartEtcd(ctx context.Context, dir string) (*Etcd, error) {
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "panic"
	config.UnsafeNoFsync = true // the state is worth no more than this run of the processes
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = anyPort, anyPort
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd in %s: %w", dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdStartTimeout)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
		return &Etcd{server: server}, nil
	case err = <-server.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	server.Close()
	return nil, fmt.Errorf("embedded etcd in %s did not become ready: %w", dir, err)
}

// Endpoint is the host:port that clients reach.
func (e *Etcd) Endpoint() string { return e.server.Clients[0].Addr().String() }

// Close stops the server.
func (e *Etcd) Close() { e.server.Close() }
