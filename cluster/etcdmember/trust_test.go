package etcdmember

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
)

// TestToken: a member with data keeps its cluster whatever its token is. A member without data does
// not join a cluster of another token, and does not change it.
func TestToken(t *testing.T) {
	t.Parallel()
	c := form(t)
	kept, lost := c.members[1], c.members[2]
	client := c.dial(c.members[:2]...)
	c.put(client, "k", "kept")
	was := c.ids(client, 3)
	_ = c.end(kept, syscall.SIGKILL)
	kept.cfg.Token = "another"
	c.start(kept)
	c.allHealthy(kept)
	c.lose(lost)
	lost.cfg.Token = "another"
	c.start(lost)
	c.until("it keeps out", func() bool {
		return lost.said("which was founded with other --peers or another --token")
	})
	is := c.ids(client, 3)
	for name, id := range was {
		if is[name] != id {
			t.Errorf("%s was %x and is %x", name, id, is[name])
		}
	}
	_ = c.end(lost, syscall.SIGTERM)
	lost.cfg.Token = "rondo"
	c.start(lost)
	c.allHealthy(lost)
	c.expect(lost, "k", "kept")
}

// TestNewAuthority: members adopt a new authority in their folder by themselves.
func TestNewAuthority(t *testing.T) {
	t.Parallel()
	before, after := certstest.New(t), certstest.New(t)
	folder := before.Member(t.TempDir())
	load := func(a *certstest.Authority) *certs.Identity {
		identity, err := certs.LoadEtcd(a.Member(t.TempDir()), certs.EtcdFolder)
		if err != nil {
			t.Fatal(err)
		}
		return identity
	}
	c := newCluster(t, 3, folder)
	c.start(c.members...)
	c.allHealthy(c.members...)
	c.tls = load(before).Client("")
	c.put(c.dial(c.members...), "k", "kept")
	after.Member(folder)
	serves := func(p *process, client *clientv3.Client) bool {
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		_, err := client.Get(ctx, "k")
		return err == nil
	}
	c.tls = load(after).Client("")
	for _, p := range c.members {
		client := c.dial(p)
		t.Logf("%s after %v", p.cfg.Name, c.until(p.cfg.Name+" serves the new authority's",
			func() bool { return serves(p, client) }))
	}
	for _, p := range c.members {
		c.expect(p, "k", "kept")
	}
	c.tls = load(before).Client("")
	if serves(c.members[0], c.dial(c.members[0])) {
		t.Error("a client of the old authority is still served")
	}
}

// TestBothFamilies: the address for all of IPv4 means all of IPv6, too.
func TestBothFamilies(t *testing.T) {
	t.Parallel()
	const address = "::1"
	probe, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Skip("this machine has no IPv6: ", err)
	}
	_ = probe.Close()
	c := newCluster(t, 1, "")
	p := c.members[0]
	p.cfg.Listen, p.cfg.Insecure = "0.0.0.0", true
	c.start(p)
	c.allHealthy(p)
	_, peers, _ := net.SplitHostPort(p.address())
	for _, port := range []string{strconv.Itoa(p.cfg.ClientPort), peers} {
		conn, err := net.Dial("tcp", net.JoinHostPort(address, port))
		if err != nil {
			t.Error(err)
			continue
		}
		_ = conn.Close()
	}
}

// TestListIsGone: that a list of revoked certificates is gone is logged once. One that cannot be
// read is a fault, with which etcd serves nobody.
func TestListIsGone(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	m := &Member{cfg: Config{TLS: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))},
		lists: make(map[string]bool)}
	list := m.revoked(certs.EtcdFolder)
	has := func(want string) {
		t.Helper()
		if got := m.tlsInfo(certs.EtcdFolder).CRLFile; got != want {
			t.Errorf("etcd has the list %q, want %q", got, want)
		}
	}
	has("")
	folder := filepath.Dir(list)
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // no folder
		t.Fatal(err)
	}
	has(list)
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	has("")
	has("")
	if n := strings.Count(log.String(), "is gone"); n != 1 {
		t.Errorf("that a list is gone is logged %d times: %s", n, &log)
	}
}
