package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// builtinText is the text of builtin:opticks.
const builtinText = "../corpus/opticks.txt"

// outside is a row of the matrix whose fault comes from outside of the job.
type outside struct {
	name    string
	promise string
	run     func(t *testing.T)
}

func runOutside(t *testing.T, rows []outside) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			row.run(t)
			t.Logf("promised: %s (%v)", row.promise,
				time.Since(began).Round(100*time.Millisecond))
		})
	}
}

// TestWorkersComeAndGo is the matrix of workers that stop, appear, leave, and do not fit.
func TestWorkersComeAndGo(t *testing.T) {
	runOutside(t, []outside{
		{"SIGSTOP of a worker past its lease",
			"the others go on without it; when it goes on it is taken in again",
			func(t *testing.T) { stopPastLease(t, 1) }},
		{"SIGSTOP of rank 0 past its lease", "the same, and another one reports",
			func(t *testing.T) { stopPastLease(t, 0) }},
		{"worker that joins late", "it is taken in at a step's end, up to --max-workers",
			joinLate},
		{"SIGTERM to a worker", "it hands over at a step's end and goes with exit code 4",
			func(t *testing.T) { terminate(t, 1) }},
		{"SIGTERM to rank 0", "the same", func(t *testing.T) { terminate(t, 0) }},
		{"fewer than --min-workers",
			"the job pauses, says what it waits for, and goes on when a worker comes",
			pauseBelowMinimum},
		{"rondo scale", "the ring shrinks and grows as told, and rondo workers shows it",
			scaleDownAndUp},
		{"rondo train starts killed workers again", "the ring is as big as before",
			restartKilled},
		{"worker with another text",
			"it is refused with a reason and exit code 1; the job goes on", anotherText},
		{"worker of another version",
			"it is refused with a reason and exit code 1; the job goes on", anotherVersion},
		{"flipped bit in a parameter",
			"the rank is named, evicted, and given the others' state when it comes back",
			flippedParameter},
		{"clocks of other epochs",
			"no deadline compares clocks of two machines: monotonic clocks may differ by days",
			otherClocks},
	})
}

func stopPastLease(t *testing.T, rank int) {
	r := newRig(t, rigConfig{})
	stopped := r.of(rank)
	r.pastLease(stopped)
	r.untilRing(2, fmt.Sprintf("pid %d", stopped.pid()))
	r.untilMore(5)
	stopped.signal(syscall.SIGCONT)
	r.untilRing(3, "more workers have appeared")
	r.untilMore(10)
	r.stop()
}

func joinLate(t *testing.T) {
	r := newRig(t, rigConfig{workers: 2, flags: []string{"--max-workers", "3"}})
	late := r.worker(nil)
	ring := r.untilRing(3, "more workers have appeared", fmt.Sprintf("pid %d", late.pid()))
	if ring.number("generation") != 2 {
		t.Errorf("the third worker came with generation %g", ring.number("generation"))
	}
	spare := r.worker(nil)
	r.untilNotice(fmt.Sprintf("pid %d waits as a spare", spare.pid()))
	r.untilMore(10)
	r.stop()
}

func terminate(t *testing.T, rank int) {
	r := newRig(t, rigConfig{})
	leaver := r.of(rank)
	leaver.signal(syscall.SIGTERM)
	r.untilRing(2, "leaves, as it was asked to", fmt.Sprintf("pid %d", leaver.pid()))
	if code := leaver.exitCode(); code != exitLeft {
		t.Errorf("exit code %d; it wrote:\n%s", code, leaver.stderr)
	}
	r.untilMore(10)
	r.stop(leaver)
}

func pauseBelowMinimum(t *testing.T) {
	r := newRig(t, rigConfig{flags: []string{"--min-workers", "3"}})
	dead := r.of(1)
	dead.kill()
	r.untilNotice("paused", "2 of at least 3 workers left", "waiting for 1 more",
		"--pause-timeout")
	r.worker(nil)
	r.untilRing(3, "are there again")
	r.untilMore(10)
	r.stop(dead)
}

func scaleDownAndUp(t *testing.T) {
	r := newRig(t, rigConfig{})
	scale := func(workers int) {
		t.Helper()
		args := append([]string{"scale", fmt.Sprint(workers)}, r.flags...)
		if code, _, stderr := run(t, args...); code != 0 {
			t.Fatalf("rondo %v: exit code %d: %s", args, code, stderr)
		}
		r.untilRing(workers, "rondo scale")
		r.untilMore(5)
		code, stdout, stderr := run(t, append([]string{"workers"}, r.flags...)...)
		if code != 0 {
			t.Fatalf("rondo workers: exit code %d: %s", code, stderr)
		}
		for rank := range workers {
			if pid := fmt.Sprint(r.ranked(rank)); !strings.Contains(stdout, pid) {
				t.Errorf("rondo workers does not show rank %d, process %s:\n%s", rank, pid, stdout)
			}
		}
		if spares := strings.Count(stdout, "spare"); spares < 3-workers {
			t.Errorf("rondo workers shows %d spares, want %d:\n%s", spares, 3-workers, stdout)
		}
	}
	scale(1)
	scale(3)
	code, _, stderr := run(t, append([]string{"scale", "1000"}, r.flags...)...)
	oneLine(t, code, 2, stderr, "12 (--batch")
	r.untilMore(5)
	r.stop()
}

func restartKilled(t *testing.T) {
	j := try(t, allowance{}, "--inject", paced)
	j.untilStep(5)
	pid := j.send(2, syscall.SIGKILL)
	j.untilRing(2, fmt.Sprintf("pid %d", pid))
	j.untilRing(3, "more workers have appeared")
	j.untilMore(10)
	j.stop()
	if want := fmt.Sprintf("process %d ended", pid); !strings.Contains(j.stderr.String(), want) {
		t.Errorf("standard error does not say %q:\n%s", want, j.stderr)
	}
}

// refused holds a worker to being refused, and the job to going on as if it had not come.
func (r *rig) refused(d *daemon, words ...string) {
	r.t.Helper()
	if code := d.exitCode(); code != 1 {
		r.t.Errorf("exit code %d, want 1", code)
	}
	if !hasAll(d.stderr.String(), append(words, "refused")) {
		r.t.Errorf("standard error does not say %q:\n%s", words, d.stderr)
	}
	r.untilNotice(append(words, "refused", fmt.Sprintf("pid %d", d.pid()))...)
	r.untilMore(10)
	if rings := named(r.stop(), "generation"); len(rings) != 1 {
		r.t.Errorf("the ring was formed anew: %v", rings)
	}
}

func anotherText(t *testing.T) {
	builtin, err := os.ReadFile(builtinText)
	if err != nil {
		t.Fatal(err)
	}
	text := write(t, "text.txt", string(builtin))
	r := newRig(t, rigConfig{flags: []string{"--corpus", text, "--max-workers", "4"}})
	altered := strings.Replace(string(builtin), "the", "eth", 1)
	if err := os.WriteFile(text, []byte(altered), 0o600); err != nil {
		t.Fatal(err)
	}
	r.refused(r.daemon(nil, "worker", r.flags), "another text", "--corpus")
}

func anotherVersion(t *testing.T) {
	binary := rebuilt(t, "../cluster/meet/meet.go", `release  = "`, `release  = "other-`,
		"worker")
	r := newRig(t, rigConfig{flags: []string{"--max-workers", "4"}})
	r.refused(launch(t, nil, environment(t), slices.Concat([]string{
		filepath.Join(binary, "worker")}, r.flags, trusting())...), `version "other-`, "same build")
}

// rebuilt builds commands from a source that has a line of its own in one file, and returns their
// folder.
func rebuilt(t *testing.T, file, line, own string, commands ...string) string {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), line) != 1 {
		t.Fatalf("%s does not have %q once", file, line)
	}
	if file, err = filepath.Abs(file); err != nil {
		t.Fatal(err)
	}
	other := write(t, filepath.Base(file), strings.Replace(string(source), line, own, 1))
	overlay := write(t, "overlay.json", fmt.Sprintf(`{"Replace": {%q: %q}}`, file, other))
	dir := t.TempDir()
	argv := []string{"build", "-ldflags=-s -w", "-overlay", overlay, "-o", dir + "/"}
	for _, c := range commands {
		argv = append(argv, "../cmd/"+c)
	}
	if out, err := exec.Command("go", argv...).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

func flippedParameter(t *testing.T) {
	j := try(t, allowance{}, "--check-every", "1", "--inject", "corrupt rank=1 step=20; "+paced)
	ring := j.untilRing(2, "rank 1, host", "other parameters")
	if ring.number("step") != 20 {
		t.Errorf("the ring without it goes on after step %g", ring.number("step"))
	}
	j.untilRing(3, "more workers have appeared")
	j.untilNotice("gave its state")
	j.untilMore(20) // as many checks find all the same
	rings := named(j.stop(), "generation")
	if len(rings) != 3 {
		t.Errorf("%d rings, want 3: %v", len(rings), rings)
	}
}

// otherClocks runs each worker in a time namespace of its own.
func otherClocks(t *testing.T) {
	offset := func(days int) []string {
		seconds := fmt.Sprint(days * 24 * 3600)
		return []string{"unshare", "--time", "--monotonic", seconds, "--boottime", seconds}
	}
	out, err := exec.Command("unshare", append(offset(1)[1:], "true")...).CombinedOutput()
	if err != nil {
		t.Skipf("no time namespace here: %v %s", err, out)
	}
	r := newRig(t, rigConfig{workers: 1, flags: []string{"--max-workers", "3"}})
	for _, days := range []int{7, 30} {
		argv := append(offset(days), filepath.Join(binaries, "worker"))
		argv = slices.Concat(argv, r.flags, trusting())
		r.workers = append(r.workers, launch(t, nil, environment(t), argv...))
	}
	r.untilRing(3)
	r.untilMore(10)
	r.survives(2)
}

// longVariable runs the tests that take minutes, as `make nightly` does.
const longVariable = "RONDO_TEST_LONG"

// TestWallClockJumps: the wall clock of every worker and of the leader jumps by an hour, back and
// forth, twice a second, and nobody notices. The clock is that of the time package, built anew;
// the machine's own is left alone.
func TestWallClockJumps(t *testing.T) {
	if os.Getenv(longVariable) == "" {
		t.Skipf("it builds the standard library anew; %s=1 runs it", longVariable)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	const read = "sec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	jumps := strings.Replace(read, "\n", "\n\tsec += (mono/500_000_000%3 - 1) * 3600\n", 1)
	dir := rebuilt(t, filepath.Join(strings.TrimSpace(string(goroot)), "src/time/time.go"), read,
		jumps, "worker", "coordinator")
	saved := filepath.Join(t.TempDir(), "run")
	r := newRig(t, rigConfig{binaries: dir, flags: []string{"--checkpoint-dir", saved,
		"--checkpoint-every", "5", "--checkpoint-keep", "0"}})
	r.leader()
	r.untilMore(250) // at least five seconds, longer than every deadline but the last
	r.uninterrupted()
	if span := savedWithin(t, saved); span < time.Hour {
		t.Errorf("by their checkpoints, the clock moved by %v", span)
	}
	r.survives(1)
}

// savedWithin returns the time between the earliest and the latest checkpoint of a folder, by the
// clocks of their writers.
func savedWithin(t *testing.T, dir string) time.Duration {
	t.Helper()
	manifests, err := filepath.Glob(filepath.Join(dir, "step-*", "manifest.json"))
	if err != nil || len(manifests) == 0 {
		t.Fatalf("no checkpoint in %s: %v", dir, err)
	}
	var first, last time.Time
	for _, path := range manifests {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var manifest struct{ Created time.Time }
		if err := json.Unmarshal(text, &manifest); err != nil {
			t.Fatal(err)
		}
		if first.IsZero() || manifest.Created.Before(first) {
			first = manifest.Created
		}
		if manifest.Created.After(last) {
			last = manifest.Created
		}
	}
	return last.Sub(first)
}

// TestThreadsFollowTheWorkers: the workers of a machine share its cores, also after one joins or
// leaves.
func TestThreadsFollowTheWorkers(t *testing.T) {
	r := newRig(t, rigConfig{workers: 1, flags: []string{"--max-workers", "2"}})
	hold := func(workers int) {
		t.Helper()
		threads, cores := 1, runtime.GOMAXPROCS(0)
		device := r.seated(0).text("device")
		if found := regexp.MustCompile(`(\d+) threads`).FindStringSubmatch(device); found != nil {
			threads, _ = strconv.Atoi(found[1])
		}
		if want := max(1, cores/workers); threads != want {
			t.Errorf("one of %d workers on %d cores computes on %s: want %d threads", workers,
				cores, device, want)
		}
	}
	hold(1)
	r.worker(nil)
	r.untilRing(2)
	hold(2)
	r.untilMore(3)
	leaver := r.of(1)
	leaver.signal(syscall.SIGTERM)
	r.untilRing(1)
	hold(1)
	r.untilMore(3)
	r.stop(leaver)
}
