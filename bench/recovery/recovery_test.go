package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rondo/audit"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, c := range []struct {
		sorted []float64
		p      float64
		want   float64
	}{
		{hundred, 0.5, 50}, {hundred, 0.95, 95}, {hundred, 1, 100}, {hundred, 0, 1},
		{hundred[:20], 0.95, 19}, {hundred[:24], 0.95, 23}, {hundred[:3], 0.5, 2},
		{hundred[:4], 0.5, 2}, {hundred[:1], 0.95, 1},
	} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("percentile %g of 1 to %d: %g, want %g", c.p, len(c.sorted), got, c.want)
		}
	}
	if got := percentile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("of nothing: %g", got)
	}
	got := seconds([]time.Duration{2 * time.Second, time.Millisecond})
	if !slices.Equal(got, []float64{0.001, 2}) {
		t.Errorf("seconds %v", got)
	}
}

func TestParseEvent(t *testing.T) {
	for line, want := range map[string]event{
		`{"event":"worker","rank":2,"pid":77,"id":"b","device":"cpu"}`: {
			Event: "worker", Rank: 2, PID: 77},
		`{"event":"step","step":9,"loss":null,"world_size":3,"generation":4}`: {
			Event: "step", Step: 9, WorldSize: 3, Generation: 4},
		`{"event": "step", "step": 9, "pid": 8, "world_size": 2, "loss": 3.1}`: {
			Event: "step", Step: 9, PID: 8, WorldSize: 2},
	} {
		if got, err := parseEvent([]byte(line)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "step 1", `{"step":1}`, `{"event":"step","step":"x"}`} {
		if got, err := parseEvent([]byte(line)); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
	a, b := event{Generation: 3, PID: 1}, event{Generation: 3, PID: 2}
	if a.ring() != b.ring() || (event{PID: 1}).ring() == (event{PID: 2}).ring() {
		t.Error("rings are told apart by generation, and by process where there is none")
	}
}

func TestAuditEvent(t *testing.T) {
	for kind, name := range map[audit.Kind]string{audit.RingLine: "ring", audit.ReadLine: "read",
		audit.CommitLine: "commit"} {
		got := auditEvent(audit.Entry{Kind: kind, Log: "a.jsonl", Generation: 7, Step: 41,
			World: 3})
		want := event{Event: name, Generation: 7, Step: 41, WorldSize: 3, Log: "a.jsonl"}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestSight(t *testing.T) {
	s := newSight(3)
	at := time.Unix(100, 0)
	step := func(generation uint64, n, world int64, after time.Duration) {
		at = at.Add(after)
		s.hear(event{Event: "step", Step: n, WorldSize: world, Generation: generation, At: at})
	}
	s.hear(event{Event: "worker", Rank: 1, PID: 11})
	s.hear(event{Event: "worker", Rank: 1, PID: 12})
	step(1, 1, 3, 0)
	step(1, 2, 3, 100*time.Millisecond)
	step(1, 3, 3, 200*time.Millisecond)
	if !s.steady(2) || s.steady(3) || s.members[1].PID != 12 || s.highest != 3 {
		t.Errorf("%+v", s)
	}
	step(2, 4, 2, time.Second)
	step(1, 3, 3, time.Second) // late
	step(2, 5, 2, time.Second)
	if s.steady(0) || s.last.Generation != 2 || s.settled != 1 {
		t.Errorf("after a ring of 2: %+v", s)
	}
	s.hear(event{Event: "generation", Generation: 3, Step: 5})
	step(3, 5, 3, time.Second) // an echo
	if s.last.Generation != 2 {
		t.Errorf("after an echo: %+v", s)
	}
	step(3, 6, 3, time.Second)
	step(3, 8, 3, time.Second) // 7 was not shown
	if !s.steady(1) || s.highest != 8 {
		t.Errorf("when the ring is full again: %+v", s)
	}
	if want := []float64{0.1, 0.2}; !slices.Equal(seconds(s.pace), want) {
		t.Errorf("pace %v, want %v: only steps of full rings, one after the other", s.pace, want)
	}
}

// script writes a program that stands for a job.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// pretender is a job of two workers, processes that only sleep. When one is gone the other takes
// one step alone, and the step after it with a new one; what the old ring said last comes late.
const pretender = `
generation=1 step=0
say() { echo "{\"event\":\"$1\",\"step\":$step,\"world_size\":$2,\"generation\":$generation}"; }
declare -a pids
renew() {
	sleep 1000 & pids[$1]=$!
	disown $!
	for rank in 0 1; do echo "{\"event\":\"worker\",\"rank\":$rank,\"pid\":${pids[$rank]:-0}}"; done
}
trap 'kill "${pids[@]}"' EXIT
renew 0; renew 1
while :; do
	for rank in 0 1; do
		if ! kill -0 "${pids[$rank]}" 2> /dev/null; then
			step=$((step + 1)); say step 2
			generation=$((generation + 1)) BACK; say generation 1
			say step 1 # an echo
			step=$((step + 1)); say step 1
			generation=$((generation + 1)); renew $rank
		fi
	done
	step=$((step + 1)); say step 2
	sleep 0.01
done`

func testConfig(t *testing.T, job string) config {
	return config{Rondo: script(t, job), Parts: "kills", Hidden: 1568, Batch: 3, BPTT: 8,
		Workers: 2, Kills: 4, PeerKills: 1, AgentKills: 1, Joins: 1, Takeovers: 1, Seed: 1,
		Timeout: 20 * time.Second, Limit: time.Minute, LeaseTTL: time.Second}
}

func TestKills(t *testing.T) {
	for name, c := range map[string]struct{ back, again, row string }{
		"goes on":   {":", "0 steps again", "0.0"},
		"goes back": {"step=$((step - 3))", "3 steps again", "3.0"},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t, strings.Replace(pretender, "BACK", c.back, 1))
			var out, log bytes.Buffer
			if err := run(context.Background(), config, &out, &log); err != nil {
				t.Fatalf("%v\n%s", err, &log)
			}
			if n := strings.Count(log.String(), c.again); n != config.Kills {
				t.Errorf("%d of %d kills have %q:\n%s", n, config.Kills, c.again, &log)
			}
			for rank := range 2 {
				if !strings.Contains(log.String(), fmt.Sprintf("rank %d killed", rank)) {
					t.Errorf("rank %d was not killed:\n%s", rank, &log)
				}
			}
			for _, want := range []string{"10066588 parameters", "rondo train: to a new step",
				"  4 ", c.row, "1.0x"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the table lacks %q:\n%s", want, &out)
				}
			}
		})
	}
}

func TestRunFails(t *testing.T) {
	const stuck = `echo '{"event":"step","step":1,"world_size":2,"generation":1}'; exec sleep 100`
	for name, c := range map[string]struct {
		job, want string
		change    func(*config)
	}{
		"ends":       {"echo because >&2; exit 3", "because", nil},
		"stuck":      {stuck, "no full ring within", func(c *config) { c.Timeout = 1e8 }},
		"over limit": {stuck, "not done within", func(c *config) { c.Limit = 1e8 }},
		"prose":      {"echo step 1", "not an event", nil},
		"no part":    {stuck, `no "kill"`, func(c *config) { c.Parts = "kill" }},
		"alone":      {stuck, "-workers", func(c *config) { c.Workers = 1 }},
		"few lanes":  {stuck, "-batch", func(c *config) { c.Batch = 2 }},
		"no kills":   {stuck, "-kills", func(c *config) { c.Kills = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t, c.job)
			if c.change != nil {
				c.change(&config)
			}
			err := run(context.Background(), config, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}
