package integration

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A trial is a job to which something is done, and which must come out as if nothing had been: it
// exits with code 0, has done every step, each piece of text was read exactly once, and its loss
// curve is that of the undisturbed job.
type trial struct {
	*process
	t     *testing.T
	audit string // folder of the audit logs
	allow allowance
	backs int // how often a ring went on from before what was done
}

// allowance is the permitted cost of a fault; the zero value: none.
type allowance struct {
	tolerance float64       // of the loss, relative; 0: curveTolerance
	back      bool          // training goes back to a checkpoint
	gaps      bool          // the leader changes: what it had not shown of the steps is lost
	reference []string      // flags of the undisturbed job that make another curve
	limit     time.Duration // of the job; 0: runTimeout
}

const (
	// curveTolerance is for float32 sums in another order, over a trial's steps.
	curveTolerance = 2e-4
	// referenceSteps is the length of the undisturbed job: most trials end earlier.
	referenceSteps = 600
)

// trialFlags is the job of all trials. The deadlines are as short as a busy machine lets them be.
func trialFlags(extra ...string) []string {
	return append(small("--lr", "0.1", "--clip-scope", "global", "--epochs", "0", "--steps",
		fmt.Sprint(referenceSteps), "--sample-tokens", "0", "--lease-ttl", "2s",
		"--chunk-timeout", "1s", "--step-timeout", "3s", "--regroup-timeout", "20s",
		"--join-timeout", "30s", "--pause-timeout", "1m", "--check-every", "10"), extra...)
}

// paced slows a job down, so that it lasts as long as a test needs it.
const paced = "delay rank=* for=20ms phase=forward times=0"

// try starts a job of three workers, unless flags set another number.
func try(t *testing.T, allow allowance, flags ...string) *trial {
	t.Helper()
	return tryOn(t, nil, allow, flags...)
}

// tryOn is try on a host of a test network; nil is this machine.
func tryOn(t *testing.T, on *host, allow allowance, flags ...string) *trial {
	t.Helper()
	dir := t.TempDir()
	j := &trial{t: t, audit: filepath.Join(dir, "audit"), allow: allow}
	j.process = startFor(t, on, cmp.Or(allow.limit, runTimeout), append([]string{"train"},
		trialFlags(append([]string{"--workers", "3", "--audit-dir", j.audit,
			"--checkpoint-dir", filepath.Join(dir, "run")},
			flags...)...)...)...)
	return j
}

// untilRing reads events until a ring of this many workers whose reason contains all words.
func (j *trial) untilRing(world int, words ...string) event {
	j.t.Helper()
	what := fmt.Sprintf("a ring of %d because of %q", world, words)
	return j.until(what, func(e event) bool { return isRing(e, world, words...) })
}

func isRing(e event, world int, words ...string) bool {
	return e.name() == "generation" && int(e.number("world_size")) == world &&
		hasAll(e.text("reason"), words)
}

func hasAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// untilNotice reads events until a notice that has all the words.
func (j *trial) untilNotice(words ...string) event {
	j.t.Helper()
	return j.until(fmt.Sprintf("a notice with %q", words), func(e event) bool {
		return e.name() == "notice" && hasAll(e.text("text"), words)
	})
}

// untilMore reads events until this many steps after the last one that was read.
func (j *trial) untilMore(steps int) event {
	j.t.Helper()
	last := 0.0
	for _, e := range named(j.kept, "step") {
		last = e.number("step")
	}
	return j.untilStep(last + float64(steps))
}

// process id of the worker that has a rank, as far as events were read.
func (j *trial) ranked(rank int) int {
	j.t.Helper()
	return int(j.seated(rank).number("pid"))
}

// seated returns the last worker event of a rank.
func (j *trial) seated(rank int) event {
	j.t.Helper()
	for i := len(j.kept) - 1; i >= 0; i-- {
		if e := j.kept[i]; e.name() == "worker" && int(e.number("rank")) == rank {
			return e
		}
	}
	j.t.Fatalf("no worker has had rank %d", rank)
	return nil
}

// send sends a signal to the worker of a rank.
func (j *trial) send(rank int, s syscall.Signal) (pid int) {
	j.t.Helper()
	pid = j.ranked(rank)
	if err := syscall.Kill(pid, s); err != nil {
		j.t.Fatalf("%v to rank %d (process %d): %v", s, rank, pid, err)
	}
	return pid
}

// stop ends the job as Ctrl-C does, and checks the promises.
func (j *trial) stop() []event {
	j.t.Helper()
	if err := j.cmd.Process.Signal(syscall.SIGINT); err != nil {
		j.t.Fatal(err)
	}
	return j.verdict()
}

// verdict waits for the job's end and checks the promises.
func (j *trial) verdict() []event {
	j.t.Helper()
	events := j.succeed()
	if len(events) == 0 || events[len(events)-1].name() != "done" {
		j.t.Fatalf("the last events are not the job's end:\n%s", tail(events))
	}
	j.checkSteps(events)
	j.checkBacks(events)
	j.checkCurve(events)
	code, stdout, stderr := run(j.t, "audit", j.audit, "--corpus", "builtin:opticks",
		"--max-tokens", "20000", "--validation-fraction", "0")
	if code != 0 {
		j.t.Errorf("rondo audit: exit code %d\n%s%s\nevents:\n%s", code, stdout, stderr,
			tail(events))
	}
	if j.t.Failed() {
		j.t.Logf("events:\n%s\nstandard error:\n%s", tail(events),
			brief(j.stderr.String()))
	}
	return events
}

// checkSteps compares the reported steps with the rings. Each ring continues where the one before
// it was, and leaves nothing out. The next ring may repeat the last reported step if only a lost
// worker had done it. A ring may report the step from which it continues for a lost worker that had
// not; steps that this worker had not reported before are missing.
func (j *trial) checkSteps(events []event) {
	j.t.Helper()
	last, generation, from := 0.0, 0.0, 0.0
	for _, e := range events {
		step := e.number("step")
		switch e.name() {
		case "generation":
			if generation > 0 && step < last-1 {
				j.backs++
				if !j.allow.back {
					j.t.Errorf("generation %g goes on after step %g, and step %g was done",
						e.number("generation"), step, last)
				}
			}
			last, generation, from = step, e.number("generation"), step
		case "step":
			if j.allow.gaps && e.number("generation") < generation && step <= from {
				continue // the report reached the leader after the next plan
			}
			again := step == from && last == from
			gap := j.allow.gaps && step > last
			if e.number("generation") != generation || step != last+1 && !again && !gap {
				j.t.Errorf("generation %g, step %g came after step %g of generation %g",
					e.number("generation"), step, last, generation)
			}
			last = step
		}
	}
	if done := events[len(events)-1].number("step"); done != last {
		j.t.Errorf("the job ended at step %g, and the last step told is %g", done, last)
	}
}

// checkBacks: a job repeats committed steps only with a reason: no worker knew the state of some
// lanes, or which parameters are right.
func (j *trial) checkBacks(events []event) {
	j.t.Helper()
	told := 0
	for _, e := range named(events, "notice") {
		text := e.text("text")
		if strings.Contains(text, "go back to a checkpoint") ||
			strings.Contains(text, "back to the checkpoint") ||
			strings.Contains(text, "from the checkpoint") || strings.Contains(text, "anew") {
			told++
		}
	}
	if j.backs > told {
		j.t.Errorf("the job went back %d times, and said why %d times", j.backs, told)
	}
}

// checkCurve compares the losses with the undisturbed job's.
func (j *trial) checkCurve(events []event) {
	j.t.Helper()
	done := events[len(events)-1]
	want, worst := undisturbed(j.t, j.allow.reference, int(done.number("step"))), 0.0
	for _, e := range named(events, "step") {
		step := int(e.number("step"))
		worst = max(worst, math.Abs(e.number("loss")-want[step-1])/want[step-1])
	}
	tolerance := j.allow.tolerance
	if tolerance == 0 {
		tolerance = curveTolerance
	}
	j.t.Logf("%g steps; largest relative difference of the loss %.2g", done.number("step"), worst)
	if !(worst <= tolerance) {
		j.t.Errorf("the loss is off by %.3g, over the limit of %g", worst, tolerance)
	}
}

// references holds the loss curves of undisturbed jobs, by their flags.
var references sync.Map

// undisturbed returns the loss curve of the trials' job on one worker, with at least this many
// steps.
func undisturbed(t *testing.T, flags []string, steps int) []float64 {
	t.Helper()
	steps = max(steps, referenceSteps)
	flags = append([]string{"--workers", "1", "--steps", fmt.Sprint(steps)}, flags...)
	once, _ := references.LoadOrStore(strings.Join(flags, " "), sync.OnceValue(func() []float64 {
		return losses(t, trialFlags(flags...)...)
	}))
	curve := once.(func() []float64)()
	if len(curve) != steps {
		t.Fatalf("the undisturbed job has %d steps, want %d", len(curve), steps)
	}
	return curve
}
