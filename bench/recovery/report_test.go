package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/bench/internal/killtrace"
	rondov1 "rondo/proto/rondo/v1"
)

// want fails the test unless the text matches each pattern, in which a blank is any number of them.
func want(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(strings.ReplaceAll(p, " ", " +")).MatchString(text) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}

func TestReport(t *testing.T) {
	ms := time.Millisecond
	r := &report{}
	r.losses("none", nil, nil) // a job that has lost nothing has no row
	r.losses("rondo", []time.Duration{100 * ms, 90 * ms, 110 * ms}, []loss{
		{next: 200 * ms, fresh: 250 * ms}, {next: 300 * ms, fresh: 300 * ms}})
	r.losses("torchrun", []time.Duration{200 * ms}, []loss{
		{next: 2 * time.Second, fresh: 5 * time.Second, again: 9, join: 7 * time.Second},
		{next: 4 * time.Second, fresh: 6 * time.Second, again: 4}})
	r.entries([]entry{{start: 900 * ms, registered: 800 * ms, pause: 300 * ms, forming: 200 * ms,
		leave: 100 * ms}})
	r.successions([]succession{{usual: 120 * ms, longest: 150 * ms, control: 140 * ms,
		served: 9 * time.Second}})
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	want(t, out.String(),
		`(?m)^rondo: to the next step 2 0\.200 0\.300 0\.300 100 $`,
		`(?m)^rondo: to a new step 2 0\.250 0\.300 0\.300 100 2\.5 0\.0 1\.0x`,
		`(?m)^torchrun: to a new step 2 5\.000 6\.000 6\.000 200 25\.0 6\.5 20\.0x`,
		`(?m)^torchrun: an agent joins 1 7\.000 7\.000 7\.000`,
		`from its start to a step 1 0\.900`, `registration to a step 1 0\.800`,
		`between the others' steps 1 0\.300`, `copy the state 1 0\.200`, `SIGTERM.* 1 0\.100`,
		`until another serves 1 9\.000`, `meanwhile 1 0\.150`, `afterwards 1 0\.140`,
		`usual time .* 1 0\.120`)
}

// The job whose processes stand alone is the one that `rondo train` has.
func TestSpec(t *testing.T) {
	c := testConfig(t, "exit 1")
	c.Threads, c.LeaseTTL = 1, 10*time.Second
	stored, err := c.spec(&stage{dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	spec := &rondov1.JobSpec{}
	if err := proto.Unmarshal(stored, spec); err != nil {
		t.Fatal(err)
	}
	if spec.Hidden != 1568 || spec.Batch != 3 || spec.Bptt != 8 || spec.Workers != 2 ||
		spec.MaxWorkers != 3 || spec.Cell != "lstm" || spec.AuditDir == "" {
		t.Errorf("%v", spec)
	}
	if got := c.parameters(); got < 9_500_000 || got > 10_500_000 {
		t.Errorf("%d parameters, want 10M", got)
	}
}

func TestRoomHears(t *testing.T) {
	r := &machineRoom{worlds: map[uint64]int64{}, first: map[int64]event{}}
	at := time.Unix(100, 0)
	commit := func(generation uint64, step int64, after time.Duration) {
		at = at.Add(after)
		r.hear(event{Event: "commit", Generation: generation, Step: step, At: at})
	}
	r.hear(event{Event: "ring", Generation: 1, WorldSize: 3})
	for step := range int64(6) {
		commit(1, step+1, 100*time.Millisecond)
		commit(1, step+1, time.Millisecond) // another worker's, later
	}
	if r.newest.Step != 6 || r.began != 1 || r.usual(6) != 101*time.Millisecond {
		t.Errorf("newest %+v, first step %d, usual %v", r.newest, r.began, r.usual(6))
	}
	if got := r.longest(2, 6); got != 101*time.Millisecond {
		t.Errorf("longest %v", got)
	}
	r.hear(event{Event: "ring", Generation: 2, WorldSize: 4})
	commit(2, 7, time.Second)
	commit(1, 6, time.Second) // late
	if r.worlds[r.newest.Generation] != 4 || r.began != 7 {
		t.Errorf("newest %+v, first step %d", r.newest, r.began)
	}
	if pause := r.first[7].At.Sub(r.first[6].At); pause != time.Second+time.Millisecond {
		t.Errorf("a pause of %v", pause)
	}
	for step := range int64(2 * keptSteps) {
		commit(2, step+8, time.Millisecond)
	}
	if len(r.first) > keptSteps {
		t.Errorf("%d steps are kept", len(r.first))
	}
}

func TestTrace(t *testing.T) {
	begin := time.Unix(100, 0)
	steps := []event{
		{Step: 7, WorldSize: 3, At: begin},
		{Step: 8, WorldSize: 2, At: begin.Add(500 * time.Millisecond)},
	}
	losses := []loss{{began: begin.Add(time.Second / 4), fresh: time.Second / 4, again: 2}}
	path := filepath.Join(t.TempDir(), "trace")
	err := killtrace.Write(path, []killtrace.Job{newTrace("torchrun", steps, losses)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	const line = `{"job":"torchrun","kills":[{"at":0.25,"fresh":0.25,"again":2}],` +
		`"steps":[{"at":0,"step":7,"workers":3},{"at":0.5,"step":8,"workers":2}]}` + "\n"
	if err != nil || string(text) != line {
		t.Errorf("%s, %v; want %s", text, err, line)
	}
}
