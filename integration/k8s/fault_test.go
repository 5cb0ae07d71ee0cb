package k8s

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// curveTolerance is the relative difference of losses that the order of float32 sums may cause. The
// observer shows six digits, which adds half of one in the sixth.
const curveTolerance = 1e-5 + 5e-6

// trial is a job to which something is done, and which must come out as if nothing had been.
type trial struct {
	*job
	ledgers *ledgers
	steps   int64
}

// try4 submits a job of four workers whose steps take so long each, and waits for its first.
func (n *namespace) try4(steps int64, pace time.Duration, more ...string) *trial {
	n.t.Helper()
	l := n.ledgers()
	compute := small("--steps", fmt.Sprint(steps))
	j := n.submit("trial", compute, append([]string{"--workers", "4", "--ha", "--audit-dir",
		"pvc://" + ledgerClaim + "/audit", "--inject",
		fmt.Sprintf("delay rank=* for=%v phase=forward times=0", pace)}, more...)...)
	j.awaitStep(submitTimeout, 1)
	n.t.Logf("from submit to the first step: %s", seconds(time.Since(j.submitted)))
	j.awaitRing(4)
	return &trial{job: j, ledgers: l, steps: steps}
}

// struck harms the job, and returns the time until a ring of this many workers had done a step
// after it. It looks from the begin, because a replacement may come soon.
func (j *trial) struck(what string, world int, do func()) {
	j.t.Helper()
	before := j.look().Generation
	start := time.Now()
	recovered := make(chan time.Duration, 1)
	go func() {
		for time.Since(start) < stepTimeout && !j.look().stepped(before, world) {
			time.Sleep(pollInterval)
		}
		recovered <- time.Since(start)
	}()
	do()
	done, took := time.Since(start), <-recovered
	if !j.seen.stepped(before, world) {
		out, err := j.tell("status")
		j.t.Fatalf("no step of %d workers within %v after %s; rondo status (%v):\n%s", world,
			stepTimeout, what, err, out)
	}
	j.t.Logf("%-45s %s until %d workers did a step (%s for the doing)", what, seconds(took),
		world, seconds(done))
}

// stepped reports whether a ring of this many workers, with a later generation, has done a step.
func (s state) stepped(after int64, world int) bool {
	return slices.ContainsFunc(s.Formed, func(ring formed) bool {
		return ring.Generation > after && ring.WorldSize == world && s.Progress.Step > ring.Step
	})
}

// rejoined waits until four workers have done a step.
func (j *trial) rejoined() {
	j.t.Helper()
	j.t.Logf("%-45s %s", "  four workers again after another", seconds(j.awaitRing(4)))
}

// end waits for the job's end, which must not have come yet.
func (j *trial) end() {
	j.t.Helper()
	if step := j.look().Progress.Step; step >= j.steps {
		j.t.Errorf("the job ended, at step %d, before everything was done to it", step)
	}
	j.awaitEnd()
}

// verdict checks an ended job: no segment was left out or read twice, no step was lost, and its
// losses are those of the undisturbed job. All nodes must be there with their audit logs.
func (j *trial) verdict() {
	j.t.Helper()
	j.ledgers.audit("--corpus", "builtin:opticks", "--max-tokens", "20000",
		"--validation-fraction", "0")
	last := int64(0)
	for _, ring := range j.seen.Formed {
		if ring.Step < last {
			j.t.Errorf("the ring of generation %d goes back from step %d to %d: %s",
				ring.Generation, last, ring.Step, ring.Reason)
		}
		last = ring.Step
	}
	j.checkCurve(j.seen.curve(j.t))
}

// checkCurve compares the losses that were seen with those of one worker on this machine.
func (j *trial) checkCurve(seen map[int64]float64) {
	j.t.Helper()
	out, err := rondo(j.t, append([]string{"train", "--json", "--workers", "1",
		"--checkpoint-dir", "none"}, j.flags...)...)
	if err != nil {
		j.t.Fatal(err)
	}
	worst, compared := 0.0, 0
	for line := range strings.Lines(out) {
		var e struct {
			Event string
			Step  int64
			Loss  float64
		}
		if json.Unmarshal([]byte(line), &e) != nil || e.Event != "step" {
			continue
		}
		if loss, ok := seen[e.Step]; ok {
			worst = max(worst, math.Abs(loss-e.Loss)/e.Loss)
			compared++
		}
	}
	j.t.Logf("%d of %d steps compared; largest relative difference of the loss %.2g", compared,
		j.steps, worst)
	if int64(compared) < j.steps/2 || !(worst <= curveTolerance) {
		j.t.Errorf("the loss is off by %.3g, over the limit of %g", worst, curveTolerance)
	}
}

// TestProcesses: pods, containers, the leader and a member of etcd with its disk are lost while a
// job trains.
func TestProcesses(t *testing.T) {
	c := connect(t)
	c.cut(t)
	n := c.namespace(t, "processes")
	j := n.try4(780, 110*time.Millisecond)

	j.struck("a worker's pod deleted", 3, func() {
		n.do("delete", "pod", j.pods(j.selector("worker"))[1].Name, "--wait=false")
	})
	j.rejoined()
	j.struck("a worker's container killed (SIGKILL)", 3, func() {
		n.kill(&j.serving("worker")[2], "worker")
	})
	j.rejoined()

	leader := j.leader()
	step := j.look().Progress.Step
	start := time.Now()
	n.kill(leader, "coordinator")
	j.await(stepTimeout, "another leader, and a step", func(s *state) bool {
		return s.Leader != "" && !strings.Contains(s.Leader, leader.Name) &&
			s.Progress.Step > step
	})
	t.Logf("%-45s %s until steps were told under another", "the leader's container killed",
		seconds(time.Since(start)))

	step = j.look().Progress.Step
	start = time.Now()
	n.do("delete", "pod", "rondo-etcd-1", "--grace-period=0", "--force")
	j.awaitStep(stepTimeout, step+5)
	t.Logf("%-45s %s until five steps more", "a member of etcd and its disk lost",
		seconds(time.Since(start)))
	until(t, stepTimeout, "three members of etcd", func() bool { return n.members() == 3 })
	t.Logf("%-45s %s", "  three members again after", seconds(time.Since(start)))
	j.end()
	j.verdict()
}

// members counts the members of etcd that serve.
func (n *namespace) members() int {
	count := 0
	for _, pod := range n.pods("app.kubernetes.io/component=etcd") {
		if serving(&pod) {
			count++
		}
	}
	return count
}

// serving are the pods of a component that serve: at least one, for which it waits.
func (j *job) serving(component string) (pods []corev1.Pod) {
	j.t.Helper()
	until(j.t, stepTimeout, "a "+component+" that serves", func() bool {
		pods = slices.DeleteFunc(j.pods(j.selector(component)), func(pod corev1.Pod) bool {
			return !serving(&pod)
		})
		return len(pods) > 0
	})
	return pods
}

// leader is the pod of the coordinator that leads, once it serves.
func (j *job) leader() (leading *corev1.Pod) {
	j.t.Helper()
	until(j.t, stepTimeout, "a coordinator that leads and serves", func() bool {
		leader := j.look().Leader
		for _, pod := range j.pods(j.selector("coordinator")) {
			if serving(&pod) && (strings.Contains(leader, pod.Name) ||
				strings.Contains(leader, pod.Status.PodIP)) {
				leading = &pod
			}
		}
		return leading != nil
	})
	return leading
}
