package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStopAndResume: the usual commands for a running job. The test follows its logs and its
// status, lists its workers, opens its page, stops it, and resumes it from the checkpoint with
// fewer workers.
func TestStopAndResume(t *testing.T) {
	c := connect(t)
	c.cut(t) // the audit's volume is made by it
	n := c.namespace(t, "stop")
	bucket := n.s3("")
	l := n.ledgers()
	j := &trial{ledgers: l, job: n.submit("trial", small("--steps", "5000"), "--workers", "4",
		"--ha",
		"--audit-dir", "pvc://"+ledgerClaim+"/audit", "--checkpoint-dir", bucket("stop"),
		"--inject", paced)}
	logs := j.begin("logs", "-f")
	observers := j.begin("logs", "-f", "--component", "observer")
	watched := j.begin("status", "--watch")
	j.awaitStep(submitTimeout, 1)
	j.awaitRing(4)
	j.checkRing(4)
	j.checkPage()
	said := slices.Concat(j.said("worker", "worker"), j.checkLeader())
	if n := strings.Count(strings.Join(said, ""), `msg="joined the ring" rank=`); n < 4 {
		t.Errorf("%d of 4 workers have said that they joined:\n%s", n, strings.Join(said, ""))
	}
	pages := j.said("coordinator", "observer") // each says where its page is
	if len(pages) < 2 {
		t.Errorf("two observers have said %q", pages)
	}

	start := time.Now()
	out, err := j.tell("stop")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("rondo stop: %s", seconds(time.Since(start)))
	var stopped int64
	_, kept, _ := strings.Cut(out, "checkpoint of step ")
	if _, err := fmt.Sscanf(kept, "%d: s3://models/stop", &stopped); err != nil {
		t.Fatalf("rondo stop does not say where the checkpoint is: %v\n%s", err, out)
	}
	logs.hasSaid(said)
	observers.hasSaid(pages)
	watched.hasSaid([]string{"4 of 4 workers in the ring", "trial: ended"})
	until(t, endTimeout, "the end of the Job", func() bool {
		complete, _ := j.ended()
		return complete
	})
	j.await(time.Minute, "the last step's loss", func(s *state) bool {
		return s.Phase == "ended" && s.Progress.Step == stopped
	})
	losses := j.seen.curve(t)

	j.steps = stopped + 150
	more := []string{"--workers", "3", "--steps", fmt.Sprint(j.steps)}
	run := j.seen.Run
	start = time.Now()
	if out, err := j.tell("resume", more...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	j.await(submitTimeout, "a step of the resumed job", func(s *state) bool {
		return s.Run > run && s.Progress.Step > stopped
	})
	t.Logf("from resume to the next step: %s", seconds(time.Since(start)))
	j.awaitEnd()
	if first := j.seen.Formed[0]; first.Step != stopped || first.WorldSize != 3 {
		t.Errorf("stopped after step %d, resumed from %d with %d workers", stopped, first.Step,
			first.WorldSize)
	}
	after := j.seen.curve(t)
	if _, next := after[stopped+1]; !next || after[stopped] != 0 {
		t.Errorf("the first step after %d is not the next one: %v", stopped, j.seen.Curve.Points)
	}
	maps.Copy(losses, after)
	j.ledgers.audit("--corpus", "builtin:opticks", "--max-tokens", "20000",
		"--validation-fraction", "0")
	j.flags = small("--steps", fmt.Sprint(j.steps))
	j.checkCurve(losses)
	j.checkAccount(int(j.steps))
	start = time.Now()
	if out, err := j.tell("delete"); err != nil || strings.Contains(out, "note:") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("rondo delete: %s", seconds(time.Since(start)))
}

// checkLeader waits until the leading coordinator has logged a step, and returns its log. The other
// coordinator logs nothing of the training.
func (j *job) checkLeader() []string {
	j.t.Helper()
	const step = `msg="step `
	var said string
	until(j.t, stepTimeout, "a step in the leader's log", func() bool {
		said = j.do("logs", j.leader().Name, "-c", "coordinator")
		return strings.Contains(said, step)
	})
	var lines []string
	for _, pod := range j.pods(j.selector("coordinator")) {
		if pod.Name == j.leader().Name {
			continue
		}
		if other := j.do("logs", pod.Name, "-c", "coordinator"); strings.Contains(other, step) {
			j.t.Errorf("%s does not lead, and logs steps:\n%s", pod.Name, other)
		}
	}
	name := j.leader().Name
	for line := range strings.Lines(said) {
		lines = append(lines, "coordinator/"+name[strings.LastIndex(name, "-")+1:]+" | "+line)
	}
	return lines
}

// TestNobodyLeads: without coordinators, the status shows no present state, names the missing
// object, and has its own exit code. The job can be deleted.
func TestNobodyLeads(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "leaderless")
	j := n.submit("trial", small("--steps", "100000"), "--workers", "2", "--inject", paced)
	j.awaitStep(submitTimeout, 1)
	if out, err := j.tell("status"); err != nil {
		t.Fatalf("of a job that runs: %v\n%s", err, out)
	}
	n.do("scale", "deployment", "trial-coordinator", "--replicas", "0")
	start, code, out := time.Now(), 0, ""
	until(t, stepTimeout, "exit code 3", func() bool {
		var err error
		var exit *exec.ExitError
		if out, err = j.tell("status"); errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		return code == 3
	})
	t.Logf("unknown %s after the last coordinator was asked to go", seconds(time.Since(start)))
	for _, words := range []string{": unknown, last heard ", "it has no replicas",
		"kubectl -n " + n.name + " scale deployment trial-coordinator --replicas 2"} {
		if !strings.Contains(out, words) {
			t.Errorf("the status does not say %q:\n%s", words, out)
		}
	}
	for _, words := range []string{"tokens/s", " left", "in the ring"} {
		if strings.Contains(out, words) {
			t.Errorf("the status says %q of a job that nobody hears of:\n%s", words, out)
		}
	}
	start = time.Now()
	if out, err := j.tell("delete", "--force"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("rondo delete --force: %s", seconds(time.Since(start)))
}

// said are the lines of a container of the pods so far, as `rondo logs` shows them: they begin
// with its name, a worker's index, and the end of the pod's name. A worker may have said nothing.
func (j *job) said(component, container string) []string {
	j.t.Helper()
	var lines []string
	for _, pod := range j.pods(j.selector(component)) {
		from := container
		if index, has := pod.Labels["batch.kubernetes.io/job-completion-index"]; has {
			from += "-" + index
		}
		from += "/" + pod.Name[strings.LastIndex(pod.Name, "-")+1:] + " | "
		for line := range strings.Lines(j.do("logs", pod.Name, "-c", container)) {
			lines = append(lines, from+strings.ReplaceAll(line, "/mnt/pvc/", "pvc://"))
		}
	}
	return lines
}

// padding is between a log line's source and the line.
var padding = regexp.MustCompile(` +\| `)

// hasSaid waits for the end of a command that follows logs, and checks that it has printed at least
// these lines.
func (b *background) hasSaid(lines []string) {
	b.t.Helper()
	b.ends()
	shown := padding.ReplaceAllString(b.out.String(), " | ")
	for _, line := range lines {
		if !strings.Contains(shown, line) {
			b.t.Errorf("%v has no line %q:\n%s", b.cmd.Args, line, shown)
		}
	}
}

// checkRing waits until `rondo status` shows a ring of this many workers and its leader, and checks
// that all lanes are dealt.
func (j *job) checkRing(world int) {
	j.t.Helper()
	type worker struct {
		Rank  *int
		Lanes []int
	}
	ring := map[int]worker{}
	var status struct {
		Detail struct {
			Leader  string
			Workers []worker
		}
	}
	took := until(j.t, stepTimeout, fmt.Sprintf("a ring of %d and its leader", world), func() bool {
		j.decode(&status, "status", "-o", "json")
		clear(ring)
		for _, w := range status.Detail.Workers {
			if w.Rank != nil && len(w.Lanes) == 2 {
				ring[*w.Rank] = w
			}
		}
		return len(ring) == world && status.Detail.Leader == j.leader().Name
	})
	j.t.Logf("rondo status names the ring of %d after %s", world, seconds(took))
	lane := 0
	for rank := range world {
		if ring[rank].Lanes[0] != lane {
			j.t.Errorf("rank %d has lanes %v, and %d is the next", rank, ring[rank].Lanes, lane)
		}
		lane = ring[rank].Lanes[1]
	}
	if lane != lanes {
		j.t.Errorf("%d lanes, not %d", lane, lanes)
	}
}

// decode runs a command for the job that prints JSON.
func (j *job) decode(to any, verb string, args ...string) {
	j.t.Helper()
	out, err := j.tell(verb, args...)
	if err != nil {
		j.t.Fatalf("%v\n%s", err, out)
	}
	if err := json.Unmarshal([]byte(out), to); err != nil {
		j.t.Fatalf("rondo %s: %v:\n%s", verb, err, out)
	}
}

// checkPage: the line of kubectl's that `rondo submit` prints opens the page, which shows the job's
// steps as they are done.
func (j *job) checkPage() {
	j.t.Helper()
	forward := begin(j.t, j.cluster.kubectl, "-n", j.namespace.name, "port-forward",
		"service/"+j.name+"-coordinator", ":8080")
	url := forward.says("where the page is", func(out string) string {
		found := regexp.MustCompile(`from (127\.0\.0\.1:\d+)`).FindStringSubmatch(out)
		if found == nil {
			return ""
		}
		return "http://" + found[1] + "/"
	})
	if page := get(j.t, url); !strings.Contains(page, "<title>Rondo</title>") {
		j.t.Errorf("%s is not the page:\n%s", url, page)
	}
	var s state
	before := j.look().Progress.Step
	until(j.t, stepTimeout, fmt.Sprintf("a step after %d at %s", before, url), func() bool {
		body := get(j.t, url+"api/state")
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			j.t.Fatalf("%v:\n%s", err, body)
		}
		return s.Progress.Step > before && s.WorldSize == 4
	})
	forward.interrupt()
}

// get fetches a URL.
func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", url, response.Status, err, body)
	}
	return string(body)
}
