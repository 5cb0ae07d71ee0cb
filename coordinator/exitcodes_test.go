package coordinator_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"rondo/cluster"
	"rondo/internal/app"
	"rondo/k8s"
)

// shelf is a bucket with one text whose failures a test can choose.
type shelf struct{ state atomic.Int64 }

// The states of a shelf.
const (
	sound = iota
	busy
	empty
	locked
	rewritten
)

// text is what the workers read. The rewritten text has the same length.
func (s *shelf) text() []byte {
	text := strings.Repeat("a text that is read by all of the workers. ", 300)
	if s.state.Load() == rewritten {
		text = strings.ReplaceAll(text, "read", "dear")
	}
	return []byte(text)
}

// ServeHTTP answers as S3 does.
func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch s.state.Load() {
	case busy:
		w.WriteHeader(http.StatusServiceUnavailable)
	case empty:
		w.WriteHeader(http.StatusNotFound)
	case locked:
		w.WriteHeader(http.StatusForbidden)
	default:
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, s.state.Load()))
		http.ServeContent(w, r, "text", time.Unix(1e9, 0), bytes.NewReader(s.text()))
	}
}

// corpus returns the spec's line for the shelf's text, which the place's workers may then read.
func (s *shelf) corpus(p *place) string {
	server := httptest.NewServer(s)
	p.t.Cleanup(server.Close)
	url := "s3://shelf/text?region=here&use_path_style=true&endpoint=" + server.URL
	p.allow.URLs = []string{url}
	return "corpus: " + url + "\n"
}

// actions returns what the Kubernetes Job does for each exit code of a worker. Without an action it
// starts another worker.
func actions(t *testing.T) map[int]batchv1.PodFailurePolicyAction {
	t.Helper()
	text, err := fs.ReadFile(k8s.FS(), "job/worker.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var job batchv1.Job
	if err := yaml.Unmarshal(text, &job); err != nil || job.Spec.PodFailurePolicy == nil {
		t.Fatalf("job/worker.yaml: %v", err)
	}
	out := map[int]batchv1.PodFailurePolicyAction{}
	for _, rule := range job.Spec.PodFailurePolicy.Rules {
		if rule.OnExitCodes != nil {
			for _, code := range rule.OnExitCodes.Values {
				out[int(code)] = rule.Action
			}
		}
	}
	return out
}

// exitCode returns the exit code of a command that fails with err.
func exitCode(err error) int {
	c := &cobra.Command{Use: "worker", RunE: func(*cobra.Command, []string) error { return err }}
	return app.Run(context.Background(), c, []string{}, io.Discard)
}

const (
	another = batchv1.PodFailurePolicyAction("")
	failJob = batchv1.PodFailurePolicyActionFailJob
)

// TestWhatTheJobDoesAboutAFailure: at the start, an error that every worker would have ends the
// Job; a passing one does not. Once a ring trains, no error of a single worker ends it.
func TestWhatTheJobDoesAboutAFailure(t *testing.T) {
	t.Parallel()
	policy := actions(t)
	for _, c := range []struct {
		name    string
		state   int64
		words   string
		starts  batchv1.PodFailurePolicyAction // if the first worker meets it
		missing bool                           // a first worker cannot meet it
	}{
		{"storage is busy", busy, "503", another, false},
		{"no such object", empty, "does not exist", failJob, false},
		{"no permission", locked, "may not be read", failJob, false},
		{"another text", rewritten, "another text or spec", "", true},
	} {
		hold := func(t *testing.T, err error, want batchv1.PodFailurePolicyAction) {
			t.Helper()
			code := exitCode(err)
			if code == 0 || policy[code] != want || !strings.Contains(err.Error(), c.words) {
				t.Errorf("exit code %d, of which the Job makes %q; want %q; %v", code,
					policy[code], want, err)
			}
		}
		if !c.missing {
			t.Run(c.name+" at the start", func(t *testing.T) {
				t.Parallel()
				p, s := newPlace(t), &shelf{}
				s.state.Store(c.state)
				p.coordinator(quick+s.corpus(p), 1)
				_, err := p.work(1)
				hold(t, err, c.starts)
				if s.state.Store(sound); c.starts == failJob {
					return
				}
				if did, err := p.work(1); err != nil {
					t.Errorf("the worker that came in its place: %q, %v", did, err)
				}
			})
		}
		t.Run(c.name+" in a replacement", func(t *testing.T) {
			t.Parallel()
			p, s := newPlace(t), &shelf{}
			p.coordinator(endless(quick)+"max_workers: 2\n"+s.corpus(p), 1)
			ctx, leave := context.WithCancel(p.ctx)
			left := make(chan error, 1)
			p.processes.Go(func() {
				_, err := p.workUntil(ctx, 1)
				left <- err
			})
			training := func(v cluster.View, _ int64) bool {
				return v.Plan.Phase == cluster.Running && len(v.Plan.Members) == 1 &&
					v.Plan.Rings == 1
			}
			p.until("a ring", training)
			s.state.Store(c.state)
			_, err := p.work(1)
			hold(t, err, another)
			p.until("the ring is as it was", training)
			leave()
			err = <-left
			if code := exitCode(err); code != app.ExitLeft || policy[code] !=
				batchv1.PodFailurePolicyActionIgnore {
				t.Errorf("who was asked to go: exit code %d, %v", code, err)
			}
		})
	}
}

// TestWhatTheJobDoesAboutItsEnd: a failure that the leader has decided ends the Job, and so do
// wrong flags.
func TestWhatTheJobDoesAboutItsEnd(t *testing.T) {
	t.Parallel()
	policy := actions(t)
	p := newPlace(t)
	_, led := p.coordinator(strings.Replace(quick, "workers: 1", "workers: 2\nmin_workers: 2", 1)+
		"step_timeout: 2s\nregroup_timeout: 4s\njoin_timeout: 4s\n", 1)
	await(t, p, "the job is submitted", func() bool {
		return p.logged("the job is submitted") > 0 || len(led) > 0
	})
	if len(led) > 0 {
		t.Fatal(<-led)
	}
	_, err := p.work(1)
	if code := exitCode(err); code != app.ExitJob || policy[code] != failJob {
		t.Errorf("a job that could not start: exit code %d, %v", code, err)
	}
	p.where.Listen = "7000"
	_, err = p.work(1)
	if code := exitCode(err); code != app.ExitUsage || policy[code] != another {
		t.Errorf("a wrong flag: exit code %d, %v", code, err)
	}
	p.where.Listen, p.where.TLS = "", t.TempDir()
	_, err = p.work(1)
	if code := exitCode(err); code != app.ExitFailure || policy[code] != another {
		t.Errorf("a folder of certificates that is not whole: exit code %d, %v", code, err)
	}
}
