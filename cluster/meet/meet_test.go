package meet_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/cluster/memstore"
	"rondo/internal/app"
	"rondo/job/jobspec"
)

func TestWrongFlags(t *testing.T) {
	good := meet.Config{Etcd: []string{"e:2379"}, Job: "demo", Listen: ":7000", Health: ":7001"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words  string
		change func(*meet.Config)
	}{
		{"--etcd: no endpoints", func(c *meet.Config) { c.Etcd = nil }},
		{`--etcd "e" is not host:port`, func(c *meet.Config) { c.Etcd = []string{"e"} }},
		{"is a URL without TLS, but --tls /certs is set", func(c *meet.Config) {
			c.Etcd, c.TLS = []string{"http://e:2379"}, "/certs"
		}},
		{"--job", func(c *meet.Config) { c.Job = "a/b" }},
		{`--listen "7000" is not host:port`, func(c *meet.Config) { c.Listen = "7000" }},
		{`--health "7001" is not host:port`, func(c *meet.Config) { c.Health = "7001" }},
		{"--run -1", func(c *meet.Config) { c.Run = -1 }},
	} {
		config := good
		c.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: want %q", err, c.words)
		}
	}
	config := good
	config.TLS = "/nowhere"
	var wrong *app.UsageError
	if _, err := config.Store(t.Context()); !errors.As(err, &wrong) ||
		!strings.Contains(err.Error(), "--tls /nowhere") {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func submit(t *testing.T, store *memstore.Store, run int64) {
	t.Helper()
	spec := jobspec.Textbook()
	spec.Submitted = run
	text, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, created, err := store.PutSpec(t.Context(), text); err != nil || !created {
		t.Fatalf("created %t, %v", created, err)
	}
}

// TestSpecOfARun: a process waits for its own run, longer than for a job of any run.
func TestSpecOfARun(t *testing.T) {
	for _, c := range []struct {
		name      string
		run       int64
		submitted time.Duration // when the run is submitted; 0: never
		older     bool          // whether an older run is stored first
		gives     int64
		up        time.Duration // when the process gives up
		words     string
	}{
		{name: "any", submitted: time.Minute, gives: 7},
		{name: "any, of an older one", older: true, gives: 3},
		{name: "any, never", up: 5 * time.Minute, words: cluster.ErrNoSpec.Error()},
		{name: "one", run: 7, submitted: 9 * time.Minute, gives: 7},
		{name: "one after another", run: 7, older: true, submitted: time.Minute, gives: 7},
		{name: "a newer one", run: 5, submitted: time.Minute, gives: 7},
		{name: "one, never", run: 7, older: true, up: 10 * time.Minute,
			words: "job demo is at run 3; this process waits for run 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				if c.older {
					submit(t, store, 3)
					end(t, store)
				}
				if c.submitted > 0 {
					go func() {
						time.Sleep(c.submitted)
						submit(t, store, 7)
					}()
				}
				began := time.Now()
				config := meet.Config{Job: "demo", Run: c.run}
				spec, err := config.Spec(t.Context(), store)
				if c.words != "" {
					if err == nil || !strings.Contains(err.Error(), c.words) {
						t.Errorf("%v: want %q", err, c.words)
					}
					if took := time.Since(began); took != c.up {
						t.Errorf("it gave up after %v, want %v", took, c.up)
					}
					return
				}
				if err != nil || spec.Submitted != c.gives {
					t.Errorf("%v, %v: want run %d", spec, err, c.gives)
				}
			})
		})
	}
}

func end(t *testing.T, store *memstore.Store) {
	t.Helper()
	leader, err := store.Campaign(t.Context(), cluster.Leader{ID: "c", Address: "c:1"}, time.Second)
	if err == nil {
		_, err = leader.LoadPlan(t.Context())
	}
	if err == nil {
		err = leader.PutPlan(t.Context(), cluster.Plan{Generation: 1, Phase: cluster.Ended})
	}
	if err == nil {
		err = leader.Resign(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
}
