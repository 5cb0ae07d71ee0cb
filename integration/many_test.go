package integration

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	manyWorkers = 64
	manyKilled  = 10
	manyScaled  = 8
)

// TestManyWorkers: a job of 64 processes. Ten are killed at once and replaced; then rondo scale
// leaves eight, and takes all back. It logs how long each change took, and the processor time of
// the leader and of etcd.
func TestManyWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("64 processes keep other tests waiting: `make race` runs it")
	}
	lanes := []string{"--batch", fmt.Sprint(manyWorkers)}
	began := time.Now()
	r := newRig(t, rigConfig{workers: manyWorkers, allow: allowance{reference: lanes,
		limit: 6 * runTimeout}, flags: slices.Concat(lanes, []string{"--steps", "100000",
		"--lease-ttl", "20s", "--chunk-timeout", "10s", "--step-timeout", "30s",
		"--regroup-timeout", "2m", "--join-timeout", "3m", "--pause-timeout", "5m"})})
	c := change{r: r, at: began, leader: r.cmd.Process.Pid, etcd: r.etcd.members[0].pid()}
	c.log("64 have joined", r.untilMore(1))

	var dead []*daemon
	for rank := 0; len(dead) < manyKilled; rank += manyWorkers / manyKilled {
		dead = append(dead, r.of(rank))
	}
	c.begin()
	for _, d := range dead {
		d.kill()
	}
	c.log("ten were killed", r.untilMore(2)) // one may have been complete
	c.begin()
	for range dead {
		r.worker(nil)
	}
	r.untilRing(manyWorkers, "more workers have appeared")
	c.log("ten have joined", r.untilMore(1))
	for _, workers := range []int{manyScaled, manyWorkers} {
		c.begin()
		args := append([]string{"scale", fmt.Sprint(workers)}, r.flags...)
		if code, _, stderr := run(t, args...); code != 0 {
			t.Fatalf("rondo %v: exit code %d: %s", args, code, stderr)
		}
		r.untilRing(workers, "rondo scale")
		c.log(fmt.Sprintf("scaled to %d", workers), r.untilMore(1))
	}
	c.begin()
	c.log("20 steps", r.untilMore(20))
	r.stop(dead...)
}

// change measures what a change of the ring takes.
type change struct {
	r            *rig
	at           time.Time
	leader, etcd int           // processes
	before       time.Duration // processor time of the leader
	beforeEtcd   time.Duration
}

func (c *change) begin() {
	t := c.r.trial.t
	c.at = time.Now()
	c.before, c.beforeEtcd = processorTime(t, c.leader), processorTime(t, c.etcd)
}

// log tells what has happened since begin, at the event of a step.
func (c *change) log(what string, e event) {
	t := c.r.trial.t
	t.Helper()
	t.Logf("%s, step %v: %v; processor time of the leader %v, of etcd %v", what, e["step"],
		time.Since(c.at).Round(time.Millisecond), processorTime(t, c.leader)-c.before,
		processorTime(t, c.etcd)-c.beforeEtcd)
}

// processorTime is the time that a process has had on processors, in and out of the kernel.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	const tick = 10 * time.Millisecond // of the kernel's report
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The fields after the command's name, which may hold spaces, begin with the third.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		t.Fatalf("the statistics of process %d are %q", pid, text)
	}
	ticks := time.Duration(0)
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * tick
}
