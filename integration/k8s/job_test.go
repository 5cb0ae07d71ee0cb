package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// imageVariable names an image that the nodes have or can pull; without it the image of the
// working tree is built and loaded.
const imageVariable = "RONDO_K8S_IMAGE"

const builtImage = "localhost/rondo:test"

// Limits of the waits for a job.
const (
	submitTimeout = 3 * time.Minute // from submit to the first step
	stepTimeout   = 2 * time.Minute // for the next steps, whatever was done to the job
	endTimeout    = 5 * time.Minute
	lookTimeout   = 1500 * time.Millisecond // for one observer's answer
)

// paced slows a job down enough for the test's actions.
const paced = "delay rank=* for=80ms phase=forward times=0"

// lanes is the batch of small jobs, which their workers share.
const lanes = 12

// ours returns the image under test, on the nodes.
func (c *cluster) ours(t *testing.T) string {
	t.Helper()
	if image := os.Getenv(imageVariable); image != "" {
		return image
	}
	c.image(t, builtImage, func(t *testing.T, archive string) {
		if _, err := run(buildTimeout, "", "make", "-C", "../..", "image",
			"IMAGE_FLAGS=-tag "+builtImage+" -output "+archive); err != nil {
			t.Fatal(err)
		}
	})
	return builtImage
}

// command builds `rondo` for this machine, once.
var command = sync.OnceValues(func() (string, error) {
	file, err := filepath.Abs("../../bin/rondo-k8s-test") // kept: building it takes long
	if err == nil {
		_, err = run(buildTimeout, "", "go", "build", "-o", file, "../../cmd/rondo")
	}
	return file, err
})

// rondo runs the command.
func rondo(t *testing.T, args ...string) (string, error) {
	t.Helper()
	file, err := command()
	if err != nil {
		t.Fatal(err)
	}
	return output(t, "", file, args...)
}

// job is a job of a namespace.
type job struct {
	*namespace
	name      string
	flags     []string // those that say what is computed
	submitted time.Time
	seen      state // the newest that was looked at
}

// small are flags of a job that computes little, and the same on any number of workers.
func small(extra ...string) []string {
	return append([]string{"--max-tokens", "20000", "--cell", "gru", "--hidden", "32", "--batch",
		strconv.Itoa(lanes), "--bptt", "16", "--layers", "1", "--dropout", "0", "--optimizer",
		"sgd", "--lr", "0.1", "--lr-schedule", "constant", "--validation-fraction", "0",
		"--clip-scope", "global", "--epochs",
		"0", "--sample-tokens", "0", "--check-every", "20"}, extra...)
}

// submit submits a job. Where the cluster has no default storage class, etcd's disks are those of
// its pods, as the test of lost disks wants them in any case.
func (n *namespace) submit(name string, compute []string, more ...string) *job {
	n.t.Helper()
	args := slices.Concat([]string{"submit", "--job", name, "-n", n.name, "--image", n.ours(n.t),
		"--etcd-storage", "ephemeral", "--cpus-per-worker", "250m", "--checkpoint-dir", "none"},
		compute, more)
	j := &job{namespace: n, name: name, flags: compute, submitted: time.Now()}
	out, err := rondo(n.t, args...)
	if err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	return j
}

// tell runs a command for the job.
func (j *job) tell(verb string, args ...string) (string, error) {
	j.t.Helper()
	return rondo(j.t, append([]string{verb, "--job", j.name, "-n", j.namespace.name}, args...)...)
}

// state is the part of /api/state that tests read.
type state struct {
	Run        int64  `json:"run,string"`
	Phase      string `json:"phase"`
	Reason     string `json:"reason"`
	Leader     string `json:"leader"`
	Generation int64  `json:"generation"`
	WorldSize  int    `json:"world_size"`
	Progress   struct {
		Step int64   `json:"step"`
		Loss float64 `json:"loss"`
	} `json:"progress"`
	Formed []formed `json:"formed"`
	Curve  struct {
		Stride int64        `json:"stride"`
		Points [][3]float64 `json:"points"` // step, loss, rate
	} `json:"curve"`
}

// formed is a ring that formed.
type formed struct {
	Generation int64  `json:"generation"`
	WorldSize  int    `json:"world_size"`
	Step       int64  `json:"step"`
	Reason     string `json:"reason"`
}

// newer reports whether a state is later than another.
func (s *state) newer(than *state) bool {
	if s.Run != than.Run {
		return s.Run > than.Run
	}
	if s.Progress.Step != than.Progress.Step {
		return s.Progress.Step > than.Progress.Step
	}
	return s.Generation >= than.Generation
}

// look asks the job's observers, through the API server, and keeps the newest answer.
func (j *job) look() state {
	answers := make(chan *state)
	pods := j.pods(j.selector("coordinator"))
	for i := range pods {
		go func() { answers <- j.ask(&pods[i]) }()
	}
	for range pods {
		if s := <-answers; s != nil && s.newer(&j.seen) {
			j.seen = *s
		}
	}
	return j.seen
}

// selector selects pods of the job.
func (j *job) selector(component string) string {
	return "rondo.dev/job=" + j.name + ",app.kubernetes.io/component=" + component
}

// ask asks one observer; nil is no answer.
func (j *job) ask(pod *corev1.Pod) *state {
	if pod.Status.Phase != corev1.PodRunning {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	body, err := j.client.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, "8080",
		"/api/state", nil).DoRaw(ctx)
	var s state
	if err != nil || json.Unmarshal(body, &s) != nil {
		return nil
	}
	return &s
}

// await looks at the job until a condition holds, and returns how long that took.
func (j *job) await(limit time.Duration, what string, holds func(s *state) bool) time.Duration {
	j.t.Helper()
	start := time.Now()
	for {
		s := j.look()
		if holds(&s) {
			return time.Since(start)
		}
		if s.Phase == "failed" || time.Since(start) > limit {
			out, err := j.tell("status")
			j.t.Fatalf("not within %v: %s; phase %q (%s), generation %d of %d workers, step %d\n"+
				"rondo status (%v):\n%s", limit, what, s.Phase, s.Reason, s.Generation, s.WorldSize,
				s.Progress.Step, err, out)
		}
		time.Sleep(pollInterval)
	}
}

// awaitStep waits for a step.
func (j *job) awaitStep(limit time.Duration, step int64) time.Duration {
	j.t.Helper()
	return j.await(limit, fmt.Sprintf("step %d", step), func(s *state) bool {
		return s.Progress.Step >= step
	})
}

// awaitRing waits until a ring of this many workers has done a step.
func (j *job) awaitRing(world int) time.Duration {
	j.t.Helper()
	return j.await(stepTimeout, fmt.Sprintf("a step of %d workers", world), func(s *state) bool {
		return s.Phase == "running" && s.WorldSize == world && s.moved()
	})
}

// moved reports whether the newest ring has done a step.
func (s *state) moved() bool {
	if len(s.Formed) == 0 {
		return false
	}
	last := s.Formed[len(s.Formed)-1]
	return last.Generation == s.Generation && s.Progress.Step > last.Step
}

// awaitEnd waits until the Job has succeeded. Where a node is lost it is complete only when the
// node is back, or its Node object is deleted: the pods that were there do not end before.
func (j *job) awaitEnd() {
	j.t.Helper()
	until(j.t, endTimeout, "the Job's end", func() bool {
		j.look()
		complete, failed := j.ended()
		if failed != "" {
			out, _ := j.tell("status")
			j.t.Fatalf("the Job has failed: %s\n%s", failed, out)
		}
		return complete
	})
	j.look()
}

// curve is the loss of each step that was seen.
func (s *state) curve(t *testing.T) map[int64]float64 {
	t.Helper()
	if s.Curve.Stride != 1 {
		t.Fatalf("the curve shows means of %d steps: the job is too long for its curve to be held "+
			"against another's", s.Curve.Stride)
	}
	losses := make(map[int64]float64)
	for _, p := range s.Curve.Points {
		losses[int64(p[0])] = p[1]
	}
	return losses
}

// seconds are for the log.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}
