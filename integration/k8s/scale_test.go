package k8s

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestScale: a job is scaled from two workers to six and to three while it trains; suspended as
// Kueue does it, and resumed with its state kept.
func TestScale(t *testing.T) {
	c := connect(t)
	c.cut(t) // the audit's volume is made by it
	n := c.namespace(t, "scale")
	bucket := n.s3("")
	l := n.ledgers()
	const steps = 600
	j := &trial{ledgers: l, steps: steps, job: n.submit("trial",
		small("--steps", fmt.Sprint(steps)), "--workers", "2", "--audit-dir",
		"pvc://"+ledgerClaim+"/audit", "--checkpoint-dir", bucket("scale"), "--inject", paced)}
	j.awaitStep(submitTimeout, 1)
	for _, world := range []int{6, 3} {
		j.struck(fmt.Sprintf("rondo scale %d", world), world, func() {
			if out, err := j.tell("scale", fmt.Sprint(world)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}

	start := time.Now()
	n.do("patch", "job", "trial-worker", "-p", `{"spec":{"suspend":true}}`)
	until(t, stepTimeout, "no worker left", func() bool { // but pods that had failed before
		return !slices.ContainsFunc(n.pods(j.selector("worker")), func(p corev1.Pod) bool {
			return p.Status.Phase != corev1.PodFailed
		})
	})
	t.Logf("suspended: no worker left after %s", seconds(time.Since(start)))
	j.await(stepTimeout, "the job paused", func(s *state) bool { return s.Phase == "paused" })
	step := j.look().Progress.Step
	if step >= steps {
		t.Fatalf("the job ended, at step %d, before it was suspended", step)
	}
	until(t, stepTimeout, "the pause in the annotations", func() bool {
		return j.kubeJob().Annotations["rondo.dev/phase"] == "paused"
	})
	if out, err := j.tell("status"); err != nil || !strings.Contains(out, "suspend") {
		t.Errorf("rondo status of a suspended job: %v\n%s", err, out)
	}

	start = time.Now()
	n.do("patch", "job", "trial-worker", "-p", `{"spec":{"suspend":false}}`)
	j.awaitRing(3)
	t.Logf("resumed: three workers did a step after %s", seconds(time.Since(start)))
	if from := j.seen.Formed[len(j.seen.Formed)-1].Step; from < step {
		t.Errorf("resumed from step %d, and step %d was done", from, step)
	}
	j.end()
	j.verdict()
}
