package etcdmember

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func form(t *testing.T) *testCluster {
	t.Helper()
	c := newCluster(t, 3, "")
	c.start(c.members...)
	t.Logf("three members formed a cluster in %v", c.allHealthy(c.members...))
	return c
}

// TestNobodyBeginsAlone: two of three members wait, healthy but not ready, and name the missing
// one. With the third they found one cluster. After a restart of all they have their data.
func TestNobodyBeginsAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, "")
	a, b, slow := c.members[0], c.members[1], c.members[2]
	c.start(a, b)
	for _, p := range []*process{a, b} {
		c.until("it waits for e2 alone", func() bool {
			status, body := p.get("/health")
			return status == http.StatusServiceUnavailable &&
				strings.HasPrefix(body, "the disk is empty, and e2 does not answer")
		})
		if status, body := p.get("/livez"); status != http.StatusOK {
			t.Errorf("a member that waits is not alive: %d %s", status, body)
		}
		if status, _ := p.get("/readyz"); status != http.StatusServiceUnavailable {
			t.Errorf("a member that waits is ready: %d", status)
		}
		// 404 would tell another member that takes this one for the leader that a lease has ended.
		answer, err := http.Get("http://" + p.address() + "/leases")
		if err != nil || answer.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("of leases it says %v, %v", answer, err)
		}
		_ = answer.Body.Close()
	}
	c.start(slow)
	t.Logf("a cluster %v after the last of three", c.allHealthy(c.members...))
	client := c.dial(c.members...)
	ids := c.ids(client, 3)
	c.put(client, "k", "kept")
	for _, p := range c.members {
		_ = c.end(p, syscall.SIGKILL)
	}
	c.start(c.members...)
	t.Logf("the same again after %v, from their disks", c.allHealthy(c.members...))
	for _, p := range c.members {
		c.expect(p, "k", "kept")
		if p.said("took") || !p.said("from the disk") {
			t.Errorf("%s did not start from its disk", p.cfg.Name)
		}
		if status, body := p.get("/metrics"); status != http.StatusOK ||
			!strings.Contains(body, "etcd_server_has_leader 1") {
			t.Errorf("%s: metrics: %d without its leader", p.cfg.Name, status)
		}
	}
	for name, id := range c.ids(client, 3) {
		if ids[name] != id {
			t.Errorf("%s was %x and is %x", name, ids[name], id)
		}
	}
}

// TestTwoDisksLost: the third disk may hold the only data left, so no member founds another
// cluster. A new one begins only after a person has deleted that disk too.
func TestTwoDisksLost(t *testing.T) {
	t.Parallel()
	c := form(t)
	c.put(c.dial(c.members...), "k", "on the third")
	keeper := c.members[2]
	_ = c.end(keeper, syscall.SIGKILL)
	c.lose(c.members[0])
	c.lose(c.members[1])
	c.start(c.members[0], c.members[1])
	for _, p := range c.members[:2] {
		c.until("it waits for the third", func() bool {
			return p.said("e2 does not answer")
		})
	}
	c.start(keeper)
	for _, p := range c.members[:2] {
		c.until("it says what to do", func() bool {
			return p.said("e2 has data of a cluster, and no majority of it answers") &&
				p.said("delete the data of all members")
		})
		if p.healthy() || p.said("founding") && strings.Count(p.log.String(), "founding") > 1 {
			t.Errorf("%s founded a second cluster", p.cfg.Name)
		}
	}
	c.lose(keeper)
	c.start(keeper)
	t.Logf("a new cluster after %v", c.allHealthy(c.members...))
	c.expect(keeper, "k", "")
}

// TestReplacementIsTakenUp: a member that dies between its removal and its return resumes there.
func TestReplacementIsTakenUp(t *testing.T) {
	t.Parallel()
	c := form(t)
	lost, others := c.members[1], []*process{c.members[0], c.members[2]}
	client := c.dial(others...)
	was := c.ids(client, 3)
	remove := func(id uint64) {
		t.Helper()
		c.until("the cluster lets it be removed", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
			defer cancel()
			_, err := client.MemberRemove(ctx, id)
			return err == nil || errors.Is(err, rpctypes.ErrMemberNotFound)
		})
	}
	c.lose(lost)
	remove(was["e1"])
	c.start(lost)
	t.Logf("removed before: back after %v", c.allHealthy(lost))
	was = c.ids(client, 3)
	c.lose(lost)
	remove(was["e1"])
	var added uint64
	c.until("the cluster lets it be added", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		answer, err := client.MemberAdd(ctx, []string{"http://" + lost.cfg.Peers[1].Address})
		if err == nil {
			added = answer.Member.ID
		}
		return err == nil
	})
	c.start(lost)
	t.Logf("added before: back after %v", c.allHealthy(lost))
	if is := c.ids(client, 3); is["e1"] == added || !lost.said("which may have begun") {
		t.Errorf("it joined as %x, and nobody knows whether that was in use", is["e1"])
	}
}

// TestOldDiskComesBack: a replaced member is started with its old disk.
func TestOldDiskComesBack(t *testing.T) {
	t.Parallel()
	c := form(t)
	p, client := c.members[0], c.dial(c.members[1:]...)
	c.put(client, "k", "first")
	was := c.ids(client, 3)
	_ = c.end(p, syscall.SIGKILL)
	aside := p.cfg.Data + ".aside"
	if err := os.Rename(p.cfg.Data, aside); err != nil {
		t.Fatal(err)
	}
	c.start(p)
	c.allHealthy(p)
	c.put(client, "k", "second")
	c.lose(p)
	if err := os.Rename(aside, p.cfg.Data); err != nil {
		t.Fatal(err)
	}
	c.start(p)
	t.Logf("back after %v", c.allHealthy(p))
	c.expect(p, "k", "second")
	if !p.said("which was removed from the cluster: its data are deleted") {
		t.Error("it did not say whose data it has deleted")
	}
	is := c.ids(client, 3)
	if is["e0"] == was["e0"] || is["e1"] != was["e1"] || is["e2"] != was["e2"] {
		t.Errorf("members were %x and are %x", was, is)
	}
	// A member that is removed while it runs returns in the same process.
	c.until("the cluster lets it be removed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		_, err := client.MemberRemove(ctx, is["e0"])
		return err == nil || errors.Is(err, rpctypes.ErrMemberNotFound)
	})
	c.until("it is another member", func() bool {
		return c.ids(client, 3)["e0"] != is["e0"]
	})
	c.allHealthy(p)
}

// TestLeaderLeavesInOrder: a leader that is stopped transfers its leadership first.
func TestLeaderLeavesInOrder(t *testing.T) {
	t.Parallel()
	c := form(t)
	ask := func(p *process) (leader, self uint64) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		status, err := c.dial(p).Status(ctx, p.client)
		if err != nil {
			return 0, 0
		}
		return status.Leader, status.Header.MemberId
	}
	var old *process
	var was uint64
	c.until("one leads", func() bool {
		for _, p := range c.members {
			if leader, self := ask(p); leader == self && leader != 0 {
				old, was = p, self
			}
		}
		return old != nil
	})
	var others []*process
	for _, p := range c.members {
		if p != old {
			others = append(others, p)
		}
	}
	begin := time.Now()
	if err := c.end(old, syscall.SIGTERM); err != nil {
		t.Errorf("it ended with %v", err)
	}
	t.Logf("the leader ended after %v", time.Since(begin))
	// After a leader is killed, the others notice only after the election timeout.
	for _, p := range others {
		took := c.until("another one leads", func() bool {
			leader, _ := ask(p)
			return leader != 0 && leader != was
		})
		if took > electionTimeout*3/4 {
			t.Errorf("%s had no other leader for %v", p.cfg.Name, took)
		}
	}
	c.allHealthy(others...)
	c.start(old)
	c.allHealthy(old)
}
