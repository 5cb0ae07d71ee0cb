package etcdmember

import (
	"context"
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
)

// ttl is the time to live of a job's leases while members are lost.
const ttl = 10 * time.Second

// job is a worker's registration and a coordinator's leadership that writes plans continuously.
type job struct {
	worker cluster.Registration
	leader cluster.Leadership
	stop   context.CancelFunc
	ended  chan error
	gap    time.Duration // longest time between two plans
	plans  int
}

func startJob(c *testCluster, endpoints []string, tls *tls.Config) *job {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: endpoints, Job: "load", TLS: tls})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = store.Close() })
	j := &job{stop: cancel, ended: make(chan error, 1)}
	j.worker, err = store.Register(ctx, cluster.Member{ID: "w", Host: "h", PID: 1}, ttl)
	if err != nil {
		c.t.Fatal(err)
	}
	j.leader, err = store.Campaign(ctx, cluster.Leader{ID: "c", Address: "c:1"}, ttl)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := j.leader.LoadPlan(ctx); err != nil {
		c.t.Fatal(err)
	}
	go func() { j.ended <- j.write(ctx) }()
	return j
}

func (j *job) write(ctx context.Context) error {
	for ctx.Err() == nil {
		begin := time.Now()
		j.plans++
		err := j.leader.PutPlan(ctx, cluster.Plan{Generation: cluster.Generation(j.plans),
			Reason: "load"})
		if err != nil && ctx.Err() == nil {
			return err
		}
		j.gap = max(j.gap, time.Since(begin))
		pause(ctx, 10*time.Millisecond)
	}
	return nil
}

func (j *job) finish(t *testing.T) {
	t.Helper()
	j.stop()
	if err := <-j.ended; err != nil {
		t.Errorf("after %d plans: %v", j.plans, err)
	}
	select {
	case <-j.worker.Lost():
		t.Error("the worker's registration was lost")
	case <-j.leader.Lost():
		t.Error("the leadership was lost")
	default:
	}
	if j.plans < 50 {
		t.Errorf("only %d plans were written: that is no load", j.plans)
	}
}

// loseEach kills one member after the other with its disk, the leader among them, and restarts it
// with an empty disk, while a job runs.
func loseEach(t *testing.T, c *testCluster, tls *tls.Config) {
	t.Helper()
	var endpoints []string
	for _, p := range c.members {
		endpoints = append(endpoints, p.client)
	}
	c.tls = tls
	client := c.dial(c.members...)
	was := c.ids(client, 3)
	j := startJob(c, endpoints, tls)
	for _, p := range c.members {
		c.lose(p)
		begin := time.Now()
		c.start(p)
		c.allHealthy(p)
		is := c.ids(client, 3)
		t.Logf("%s is back %v after it started with an empty disk", p.cfg.Name,
			time.Since(begin).Round(time.Millisecond))
		for name, id := range is {
			if (id == was[name]) == (name == p.cfg.Name) {
				t.Errorf("%s: %s was %x and is %x", p.cfg.Name, name, was[name], id)
			}
		}
		was = is
	}
	j.finish(t)
	t.Logf("%d plans; the longest wait for one was %v", j.plans, j.gap.Round(time.Millisecond))
	c.expectPlan(j.plans)
}

func (c *testCluster) expectPlan(least int) {
	c.t.Helper()
	for _, p := range c.members {
		store, err := etcdstore.Open(c.t.Context(), etcdstore.Config{TLS: c.tls,
			Endpoints: []string{p.client}, Job: "load"})
		if err != nil {
			c.t.Fatal(err)
		}
		enough := fmt.Errorf("seen")
		_ = store.WatchPlan(c.t.Context(), func(plan cluster.Plan) error {
			if int(plan.Generation) < least-1 { // the last write may have been given up
				c.t.Errorf("%s has plan %d of %d", p.cfg.Name, plan.Generation, least)
			}
			return enough
		})
		_ = store.Close()
	}
}

// TestDisksLostUnderLoad: each member in turn loses its disk, and no lease is lost.
func TestDisksLostUnderLoad(t *testing.T) {
	t.Parallel()
	loseEach(t, form(t), nil)
}

// TestMutualTLS: the same with mutual TLS on every connection. A process without a certificate is
// refused as a client and as a member.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	folder := certstest.New(t).Member(t.TempDir())
	c := newCluster(t, 3, folder)
	c.start(c.members...)
	c.allHealthy(c.members...)
	identity, err := certs.LoadEtcd(folder, certs.EtcdFolder)
	if err != nil {
		t.Fatal(err)
	}
	loseEach(t, c, identity.Client(""))
	for _, address := range []string{c.members[0].client,
		"https://" + c.members[0].cfg.Peers[0].Address} {
		unknown := &tls.Config{InsecureSkipVerify: true}
		stranger, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, TLS: unknown,
			Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
		if _, err := stranger.Get(ctx, "k"); err == nil {
			t.Errorf("%s serves a client without a certificate", address)
		}
		cancel()
		_ = stranger.Close()
	}
}
