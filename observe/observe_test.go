package observe

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rondo/cluster/meet"
	"rondo/internal/app"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, // of an embedded etcd that was closed
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/server/v3/lease.(*lessor).runLoop"))
}

// hasLines reports whether a text of metrics has all of these lines.
func hasLines(text []byte, lines ...string) (missing string) {
	for _, line := range lines {
		if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
			return line
		}
	}
	return ""
}

// One observer follows a job from before it is submitted through a change of leader to its end,
// then its next run, and outlasts etcd.
func TestObserveAJob(t *testing.T) {
	j := newJob(t)
	o := j.observe(nil)
	o.until("etcd's answer", func(s shown) bool { return strings.Contains(s.Reason, "submitted") })
	if status, body := o.get("/readyz"); status != 200 {
		t.Errorf("/readyz: %d, %s", status, body)
	}
	j.submit(1)
	stop := j.lead("pod-a")
	w1, w2 := j.join("w1"), j.join("w2")
	ring := o.until("a ring", func(s shown) bool { return s.Phase == "running" && s.ring() == 2 })
	if ring.Run != "1" || !strings.Contains(ring.Leader, "pod-a") ||
		ring.Workers[1].Host != "host-w2" {
		t.Errorf("the ring is shown as %+v", ring)
	}
	g := ring.Generation
	w1.say(seated(g, w1, 0), step(g, 1), step(g, 2), saved(2), step(g, 3))
	w2.say(seated(g, w2, 1))
	o.until("step 3", func(s shown) bool { return s.Progress.Step == 3 })
	stop()
	o.until("that nobody leads", func(s shown) bool { return s.Troubles["leader"].Text != "" })
	j.lead("pod-b")
	w1.say(step(g, 4), step(g, 5), saved(5))
	later := o.until("the next leader", func(s shown) bool {
		return s.Progress.Step == 5 && len(s.Checkpoints) == 2 &&
			strings.Contains(s.Leader, "pod-b")
	})
	if n := len(later.Curve.Points); n != 5 {
		t.Errorf("the curve has %d points after 5 steps", n)
	}
	saves := 0
	for _, n := range later.Notices {
		if n.Kind == "checkpoint" {
			saves++
		}
	}
	if saves != 2 {
		t.Errorf("2 checkpoints are told %d times: %+v", saves, later.Notices)
	}
	_, figures := o.get("/metrics")
	if missing := hasLines(figures, `rondo_step{job_name="demo"} 5`,
		`rondo_steps_total{job_name="demo"} 5`, `rondo_tokens_total{job_name="demo"} 300`,
		`rondo_step_seconds_count{job_name="demo"} 5`, `rondo_leader{job_name="demo"} 1`,
		`rondo_workers{job_name="demo",state="ring"} 2`); missing != "" {
		t.Errorf("no %s in\n%s", missing, figures)
	}
	w1.say(done(g, 20))
	w2.say(done(g, 20))
	o.until("the end", func(s shown) bool { return s.Phase == "ended" && s.Progress.Step == 20 })

	j.submit(2)
	next := o.until("the next run", func(s shown) bool { return s.Run == "2" })
	if next.Progress.Step != 0 || len(next.Curve.Points) != 0 || next.Phase != "forming" {
		t.Errorf("the next run begins as %+v", next)
	}
	j.lead("pod-c")
	o.until("a ring of the next run", func(s shown) bool {
		return s.Phase == "running" && s.Generation > g
	})
	j.close()
	away := o.until("that etcd is away", func(s shown) bool {
		return s.Troubles["etcd"].Text != ""
	})
	if away.Phase != "running" || len(away.Workers) != 2 {
		t.Errorf("without etcd the state is %+v", away)
	}
	if status, _ := o.get("/healthz"); status != 200 {
		t.Errorf("/healthz without etcd: %d", status)
	}
	if err := o.stop(); err != nil {
		t.Errorf("the observer ended with %v", err)
	}
}

// An observer starts without etcd, and reports that.
func TestObserveWithoutEtcd(t *testing.T) {
	j := &aJob{t: t, where: meet.Config{Etcd: []string{"127.0.0.1:1"}, Job: "demo",
		Patience: time.Second}}
	o := j.observe(nil)
	o.until("that etcd is away", func(s shown) bool {
		return strings.Contains(s.Troubles["etcd"].Text, "127.0.0.1:1")
	})
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/": 200, "/x": 404} {
		if status, _ := o.get(path); status != want {
			t.Errorf("%s: status %d, want %d", path, status, want)
		}
	}
	if err := o.stop(); err != nil {
		t.Errorf("the observer ended with %v", err)
	}
}

func TestWrongConfig(t *testing.T) {
	ok := meet.Config{Etcd: []string{"127.0.0.1:1"}, Job: "demo"}
	tls := ok
	tls.TLS = "nowhere"
	insecure := ok
	insecure.Insecure = true
	for want, cfg := range map[string]Config{
		"--listen":         {Meet: ok, Listen: "8080"},
		"--etcd":           {Meet: meet.Config{Job: "demo"}, Listen: ":0"},
		"nowhere":          {Meet: tls, Listen: "127.0.0.1:0"},
		"--listen: listen": {Meet: insecure, Listen: "192.0.2.1:1"},
		"--insecure":       {Meet: ok, Listen: "192.0.2.1:1"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := Run(ctx, cfg)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
		var usage *app.UsageError
		if errors.As(err, &usage) != (want != "--listen: listen") {
			t.Errorf("%v: a usage error? %t", err, errors.As(err, &usage))
		}
	}
}
