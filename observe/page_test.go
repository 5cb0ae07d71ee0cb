package observe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"rondo/telemetry"
)

// page serves the web page of a job of ours, as the process that runs the job does.
func (j *aJob) page() (*Page, *observed) {
	j.t.Helper()
	page, err := OpenPage(j.t.Context(), "127.0.0.1:0", j.spec)
	if err != nil {
		j.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, j.store) }()
	o := &observed{t: j.t, url: page.URL(), stop: sync.OnceValue(func() error {
		cancel()
		return <-ended
	})}
	j.t.Cleanup(func() {
		_ = o.stop()
		http.DefaultClient.CloseIdleConnections()
	})
	return page, o
}

// A run's own page shows the events that it is given, and how the stored job stands; it says when
// etcd is gone, and ends without a goroutine left.
func TestPageOfARun(t *testing.T) {
	j := newJob(t)
	j.submit(1)
	page, o := j.page()
	j.lead("pod-a")
	j.join("w1")
	j.join("w2")
	ring := o.until("a ring", func(s shown) bool { return s.Phase == "running" && s.ring() == 2 })
	if ring.Job != "demo" || ring.Run != "1" || !strings.Contains(ring.Leader, "pod-a") {
		t.Errorf("the ring is shown as %+v", ring)
	}
	page.Show(telemetry.Step{Step: 3, TotalSteps: 20, Loss: 2, TokensPerSecond: 600})
	page.Show(telemetry.Checkpoint{Step: 3, Path: "runs/step-3"})
	o.until("step 3", func(s shown) bool {
		return s.Progress.Step == 3 && len(s.Checkpoints) == 1 && len(s.Curve.Points) == 1
	})
	_, figures := o.get("/metrics")
	if missing := hasLines(figures, `rondo_step{job_name="demo"} 3`); missing != "" {
		t.Errorf("no %s in\n%s", missing, figures)
	}
	j.close()
	o.until("that etcd is away", func(s shown) bool { return s.Troubles["etcd"].Text != "" })
	if err := o.stop(); err != nil {
		t.Error(err)
	}
}

// Two runs on one machine have pages of their own; an address that is taken is an error.
func TestPagesDoNotCollide(t *testing.T) {
	j := newJob(t)
	_, one := j.page()
	_, two := j.page()
	if one.url == two.url {
		t.Errorf("two pages are at %s", one.url)
	}
	address := strings.TrimPrefix(one.url, "http://")
	if host, _, err := net.SplitHostPort(address); err != nil || host != "127.0.0.1" {
		t.Errorf("the page is at %s, which is not loopback", address)
	}
	if _, err := OpenPage(t.Context(), address, j.spec); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("opening %s again: %v", address, err)
	}
}
