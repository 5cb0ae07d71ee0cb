package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"rondo/internal/port"
)

// etcdVariable holds the etcdConfig of a process that is an etcd instead of a test: one that can
// be killed.
const etcdVariable = "RONDO_TEST_ETCD"

// etcdReady is the line that an etcd process prints when it serves.
const etcdReady = "ready\n"

// etcdConfig is one member of an etcd cluster.
type etcdConfig struct {
	Name, Dir    string
	Client, Peer string // host:port
	Cluster      string // NAME=URL,... of the peers
}

// serveEtcd is the main function of an etcd process.
func serveEtcd(text string) int {
	var c etcdConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	config := embed.NewConfig()
	config.Name, config.Dir, config.InitialCluster = c.Name, c.Dir, c.Cluster
	config.LogLevel, config.LogOutputs = "panic", []string{"stderr"}
	config.UnsafeNoFsync = true // what a killed process has written stays
	client := []url.URL{{Scheme: "http", Host: c.Client}}
	peer := []url.URL{{Scheme: "http", Host: c.Peer}}
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	server, err := embed.StartEtcd(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(etcdReady)
	fmt.Fprintln(os.Stderr, <-server.Err())
	return 1
}

// etcds is an etcd cluster of killable processes.
type etcds struct {
	t       *testing.T
	on      []*host // of each member; nil: this machine
	configs []etcdConfig
	members []*daemon
	client  *clientv3.Client
}

// startEtcds starts an etcd cluster with a member on each host.
func startEtcds(t *testing.T, on ...*host) *etcds {
	t.Helper()
	c := &etcds{t: t, on: on, members: make([]*daemon, len(on))}
	var peers []string
	dir := t.TempDir()
	for i, on := range on {
		config := etcdConfig{Name: fmt.Sprintf("etcd%d", i), Dir: filepath.Join(dir, fmt.Sprint(i)),
			Client: port.ForTest(t).Address(), Peer: port.ForTest(t).Address()}
		if on != nil {
			config.Client, config.Peer = on.Address+":2379", on.Address+":2380"
		}
		peers = append(peers, fmt.Sprintf("%s=http://%s", config.Name, config.Peer))
		c.configs = append(c.configs, config)
	}
	for i := range c.configs {
		c.configs[i].Cluster = strings.Join(peers, ",")
		c.launch(i)
	}
	for i := range c.configs {
		c.ready(i)
	}
	c.client = etcdClient(t, on[len(on)-1], c.endpoints()...)
	return c
}

// etcdClient is a client on a host.
func etcdClient(t *testing.T, on *host, endpoints ...string) *clientv3.Client {
	t.Helper()
	config := clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(),
		DialTimeout: 5 * time.Second}
	if on != nil {
		config.DialOptions = []grpc.DialOption{grpc.WithContextDialer(on.dial)}
	}
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// launch starts a member, for the first time or again over the same data.
func (c *etcds) launch(i int) {
	c.t.Helper()
	config, err := json.Marshal(c.configs[i])
	if err != nil {
		c.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	c.members[i] = launch(c.t, c.on[i], append(os.Environ(), etcdVariable+"="+string(config)), self)
}

func (c *etcds) ready(i int) {
	c.t.Helper()
	d := c.members[i]
	await(c.t, "an etcd that serves", func() bool { return d.stdout.String() == etcdReady })
}

func (c *etcds) endpoints() []string {
	var out []string
	for _, config := range c.configs {
		out = append(out, config.Client)
	}
	return out
}

// request bounds one request to etcd.
func request(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// leader returns the member that leads the cluster, as the members report it.
func (c *etcds) leader() int {
	c.t.Helper()
	for i, config := range c.configs {
		status, err := c.client.Status(request(c.t), config.Client)
		if err != nil {
			c.t.Fatal(err)
		}
		if status.Leader == status.Header.MemberId {
			return i
		}
	}
	c.t.Fatal("no member leads the etcd cluster")
	return -1
}
