package kube

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDecide: one look after the other at a RondoJob, and what the operator makes of it.
func TestDecide(t *testing.T) {
	running := sight{run: true, there: true, begun: true, workers: 2, wanted: 2}
	ended := sight{run: true, there: true, begun: true, ended: true, workers: 2, wanted: 2}
	wrong := errors.New("spec.job.hidden 0 is below its least value, 1")
	for _, c := range []struct {
		name   string
		from   sight
		change func(*sight)
		want   action
		reason string
		words  string // of the condition's message
	}{
		{"new", sight{}, nil, begin, reasonApplied, ""},
		{"wrong", sight{}, func(s *sight) { s.wrong = wrong }, leave, reasonInvalid,
			"spec.job.hidden 0"},
		{"the name is taken", sight{}, func(s *sight) { s.taken = "job/song-worker" }, leave,
			reasonConflict, "job/song-worker exists"},
		{"an earlier one leaves", sight{}, func(s *sight) { s.leaving = true }, leave,
			reasonLeaving, "earlier RondoJob"},
		{"begun, and the operator died before the Job was made", running,
			func(s *sight) { s.there, s.begun = false, false }, begin, reasonApplied, ""},
		{"it runs", running, nil, leave, reasonApplied, ""},
		{"it runs, and some object may be missing", running, func(s *sight) { s.due = true }, mend,
			reasonApplied, ""},
		{"scaled", running, func(s *sight) { s.wanted = 6 }, scale, reasonApplied, ""},
		{"replicas are the job's workers", running, func(s *sight) { s.wanted = 0 }, leave,
			reasonApplied, ""},
		{"suspended", running, func(s *sight) { s.suspending = true }, suspend, reasonApplied, ""},
		{"resumed", running, func(s *sight) { s.suspended = true }, suspend, reasonApplied, ""},
		{"Kueue suspends", running, func(s *sight) { s.suspended, s.queue = true, "team" }, leave,
			reasonApplied, ""},
		{"a field changes while it runs", running, func(s *sight) {
			s.changed = []string{"job.lr"}
		}, leave, reasonImmutable, "job.lr: changed while the job runs"},
		{"a field changes and it is scaled", running, func(s *sight) {
			s.changed, s.wanted = []string{"job.lr"}, 3
		}, scale, reasonImmutable, "job.lr"},
		{"a field changes before a worker runs", running, func(s *sight) {
			s.changed, s.begun = []string{"image"}, false
		}, begin, reasonApplied, ""},
		{"scaled to what cannot be", running, func(s *sight) {
			s.wrong, s.wanted = wrong, 600
		}, leave, reasonInvalid, "below"},
		{"the Job is deleted", running, func(s *sight) { s.there, s.begun = false, false }, begin,
			reasonApplied, ""},
		{"ended", ended, nil, leave, reasonApplied, ""},
		{"ended, and due", ended, func(s *sight) { s.due = true }, leave, reasonApplied, ""},
		{"ended, and only its record is left", ended, func(s *sight) { s.there = false }, leave,
			reasonApplied, ""},
		{"scaled after the end", ended, func(s *sight) { s.wanted = 6 }, leave, reasonApplied, ""},
		{"more steps after the end", ended, func(s *sight) { s.changed = []string{"job.steps"} },
			begin, reasonApplied, ""},
		{"wrong after the end", ended, func(s *sight) {
			s.changed, s.wrong = []string{"job.hidden"}, wrong
		}, leave, reasonInvalid, "hidden"},
	} {
		s := c.from
		if c.change != nil {
			c.change(&s)
		}
		got, applied := decide(&s)
		if got != c.want || applied.Reason != c.reason ||
			!strings.Contains(applied.Message, c.words) {
			t.Errorf("%s: action %q and condition %+v, want %q, %s, %q", c.name, got, applied,
				c.want, c.reason, c.words)
		}
		if good := applied.Status == metav1.ConditionTrue; good !=
			(c.reason == reasonApplied && c.want != begin) {
			t.Errorf("%s: the condition is %s", c.name, applied.Status)
		}
	}
}

// TestRondoJobSpec: the keys of `rondo train --config` under job, the options of `rondo submit` in
// camel case, and the fields of pods as Kubernetes has them; errors name the field.
func TestRondoJobSpec(t *testing.T) {
	read := func(change func(spec map[string]any)) (*Submission, error) {
		r := &rondoJob{Spec: map[string]any{
			"job":      map[string]any{"checkpoint_dir": "pvc://models/song", "lr": 0.004, "hidden": int64(64)},
			"replicas": int64(4), "cpusPerWorker": "500m", "ha": true,
			"s3Cidr": []any{"192.0.2.0/24"}, "annotations": map[string]any{"team": "music"},
			"podTemplate": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
				"name": "worker",
				"env":  []any{map[string]any{"name": "SONG", "value": "rondo"}}}}}},
		}}
		r.Name = "song"
		change(r.Spec)
		return r.submission("registry/rondo:1")
	}
	s, err := read(func(map[string]any) {})
	check(t, err)
	spec, err := s.job()
	check(t, err)
	if spec.Job != "song" || spec.Workers != 4 || spec.Lr != 0.004 || spec.Hidden != 64 ||
		s.CPUsPerWorker != "500m" || s.HA != "true" || s.S3CIDR[0] != "192.0.2.0/24" ||
		s.Image != "registry/rondo:1" || s.EtcdStorage != defaultStorage ||
		s.Annotations["team"] != "music" {
		t.Errorf("read as %v and %+v", spec, s.Options)
	}
	job := func(key string, value any) func(map[string]any) {
		return func(spec map[string]any) { spec["job"].(map[string]any)[key] = value }
	}
	m, err := Render(t.Context(), s, "music")
	check(t, err)
	text, err := m.YAML()
	check(t, err)
	if n := strings.Count(string(text), "- name: SONG\n"); n != 1 {
		t.Errorf("the variable is there %d times", n)
	}
	for _, c := range []struct {
		change func(map[string]any)
		words  string
	}{
		{job("hiden", int64(1)), "unknown key \"hiden\", did you mean hidden?"},
		{job("hidden", int64(0)), "spec.job.hidden 0 is below"},
		{job("job", "other"), "is not the RondoJob's name"},
		{job("corpus", "/var/run/secrets/kubernetes.io/serviceaccount/token"), "brings no files"},
		{job("vectors", "/etc/passwd"), "brings no files"},
		{job("tokenizer", "/etc/tokenizer.json"), "brings no files"},
		{job("checkpoint_dir", ""), "spec.job.checkpoint_dir is needed"},
		{func(s map[string]any) { s["replicas"] = int64(4096) }, "spec.replicas 4096"},
		{func(s map[string]any) { s["cpusPerWorker"] = "many" },
			"spec.cpusPerWorker \"many\" is no"},
		{func(s map[string]any) { s["imag"] = "x" },
			"spec.imag is no field of a RondoJob, did you mean image?"},
		{func(s map[string]any) { s["podTemplate"] = map[string]any{"sped": "X"} }, "sped"},
	} {
		_, err := read(c.change)
		wants(t, err, c.words)
	}
}
