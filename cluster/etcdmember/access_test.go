package etcdmember

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
)

// TestUsers: a process reaches its job's keys alone, and writes those of its role. Users who come
// do not disturb others' requests.
func TestUsers(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	order := certs.Order{Namespace: "here", Jobs: []string{"book", "song", "late0", "late1",
		"late2", "late3"}}
	if _, err := certs.Issue(folder, order, time.Now()); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 3, folder)
	c.start(c.members...)
	c.allHealthy(c.members...)
	as := func(job string, role certs.Role) *clientv3.Client {
		identity, err := certs.Load(folder, job, role)
		if err != nil {
			t.Fatal(err)
		}
		c.tls = identity.Client("")
		return c.dial(c.members...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	roles := map[certs.Role]*clientv3.Client{}
	for _, role := range certs.Roles() {
		roles[role] = as("book", role)
	}
	stranger := as("song", certs.User)
	if _, err := stranger.Put(ctx, "/rondo/song/spec", "its own"); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"spec", "plan", "leader/1", "members/w", "claims/c", "tip"} {
		key := "/rondo/book/" + key
		for role, client := range roles {
			_, err := client.Put(ctx, key, "x")
			may := role == certs.Coordinator || role == certs.User || role == certs.Worker &&
				(key == "/rondo/book/members/w" || key == "/rondo/book/claims/c" ||
					key == "/rondo/book/tip")
			if may != (err == nil) || err != nil && !denied(err) {
				t.Errorf("a %s writes %s: %v", role, key, err)
			}
			if _, err := client.Get(ctx, key); err != nil {
				t.Errorf("a %s reads %s: %v", role, key, err)
			}
			if _, err := client.Get(ctx, "/rondo/song/spec"); !denied(err) {
				t.Errorf("a %s reads another job's spec: %v", role, err)
			}
		}
		if _, err := stranger.Put(ctx, key, "x"); !denied(err) {
			t.Errorf("another job's user writes %s: %v", key, err)
		}
		if answer := <-stranger.Watch(ctx, key); !denied(answer.Err()) {
			t.Errorf("another job's user watches %s: %v", key, answer.Err())
		}
	}
	if _, err := stranger.MemberRemove(ctx, 1); !denied(err) {
		t.Errorf("a user removes members: %v", err)
	}
	if _, err := stranger.UserAdd(ctx, "x", ""); !denied(err) {
		t.Errorf("a user adds users: %v", err)
	}
	steadily(t, c, folder, func() {
		for _, job := range order.Jobs[2:] {
			key := "/rondo/" + job + "/spec"
			if _, err := as(job, certs.User).Put(ctx, key, "x"); err != nil {
				t.Error(err)
			}
		}
	})
}

func denied(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) ||
		err != nil && strings.Contains(err.Error(), "permission denied") // of a watch
}

// steadily writes plans while others are at work.
func steadily(t *testing.T, c *testCluster, folder string, others func()) {
	t.Helper()
	identity, err := certs.Load(folder, "song", certs.Coordinator)
	if err != nil {
		t.Fatal(err)
	}
	var endpoints []string
	for _, p := range c.members {
		endpoints = append(endpoints, p.client)
	}
	store, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: endpoints, Job: "song",
		TLS: identity.Client("")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	leader, err := store.Campaign(t.Context(), cluster.Leader{ID: "c", Address: "a:1"}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for generation := cluster.Generation(1); ; generation++ {
			err := leader.PutPlan(t.Context(), cluster.Plan{Generation: generation})
			if err != nil {
				t.Errorf("plan %d: %v", generation, err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	others()
	close(done)
	writing.Wait()
	_ = leader.Resign(t.Context())
}

// TestNoUser: a certificate of the authority whose common name is not what its URIs say is no
// user's, even if that user exists. Keys have no namespace, and neither have users.
func TestNoUser(t *testing.T) {
	t.Parallel()
	authority := certstest.New(t)
	c := newCluster(t, 1, authority.Member(t.TempDir()))
	c.start(c.members...)
	c.allHealthy(c.members...)
	user := certs.Process{Namespace: "here", Job: "book", Role: certs.User}
	elsewhere, observer, stranger := user, user, user
	elsewhere.Namespace, observer.Role, stranger.Job = "there", certs.Observer, "song"
	for _, shown := range []struct {
		common string
		names  []certs.Process
		wanted codes.Code
	}{
		{"book/user", []certs.Process{user}, codes.OK},
		{"book/user", []certs.Process{observer, stranger}, codes.PermissionDenied},
		{"book/user", nil, codes.PermissionDenied},
		{"book/user", []certs.Process{elsewhere}, codes.OK},
		{"book/observer", []certs.Process{observer, stranger}, codes.OK},
		{"song/user", []certs.Process{observer, stranger}, codes.PermissionDenied}, // by etcd
		{"root/", []certs.Process{observer}, codes.PermissionDenied},
		{"root", []certs.Process{user}, codes.PermissionDenied},
		{"root", nil, codes.OK},
	} {
		authority.Common, authority.Names = shown.common, shown.names
		identity, err := certs.LoadEtcd(authority.Good(t.TempDir()), ".")
		if err != nil {
			t.Fatal(err)
		}
		c.tls = identity.Client("")
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		_, err = c.dial(c.members...).Get(ctx, "/rondo/book/spec")
		cancel()
		code := status.Code(err)
		if denied(err) {
			code = codes.PermissionDenied
		}
		if code != shown.wanted {
			t.Errorf("as %q with %v: %v", shown.common, shown.names, err)
		}
	}
}

// TestExpiredUser: a connection serves its user no longer than the certificate that opened it.
func TestExpiredUser(t *testing.T) {
	t.Parallel()
	authority := certstest.New(t)
	c := newCluster(t, 1, authority.Member(t.TempDir()))
	c.start(c.members...)
	c.allHealthy(c.members...)
	authority.Names = certstest.All("book")[:1]
	const life = 15 * time.Second
	identity, err := certs.LoadEtcd(authority.Issue(t.TempDir(), time.Now().Add(life), certs.Name),
		".")
	if err != nil {
		t.Fatal(err)
	}
	c.tls = identity.Client("")
	client := c.dial(c.members...)
	get := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), changeTimeout)
		defer cancel()
		_, err := client.Get(ctx, "/rondo/book/spec")
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	c.until("the user is out", func() bool {
		err := get()
		return status.Code(err) == codes.Unauthenticated &&
			strings.Contains(err.Error(), "renew it")
	})
}
