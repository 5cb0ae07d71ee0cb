package k8s

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// queueVariable is set where Kueue runs with its feature ElasticJobsViaWorkloadSlices.
const queueVariable = "RONDO_K8S_KUEUE"

// clusterQueue is the name of the test's objects that belong to the whole cluster.
const clusterQueue = "rondo-test"

// queue is LocalQueue team of a namespace, alone in a ClusterQueue.
type queue struct{ *namespace }

// queue makes a queue with quota for six workers of n.submit.
func (n *namespace) queue() queue {
	n.t.Helper()
	if os.Getenv(queueVariable) == "" {
		n.t.Skip(queueVariable + " is not set: no Kueue to test with; see " +
			"integration/k8s/README.md")
	}
	n.t.Cleanup(func() {
		_, err := n.try("", "delete", "clusterqueue,resourceflavor", clusterQueue, "--wait=false")
		if err != nil {
			n.t.Error(err)
		}
	})
	n.apply(`apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: ` + clusterQueue + `}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: ` + clusterQueue + `}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: ` + clusterQueue + `
      resources: [{name: cpu, nominalQuota: 1500m}, {name: memory, nominalQuota: 64Gi}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team}
spec: {clusterQueue: ` + clusterQueue + `}
`)
	return queue{n}
}

// awaitUsed waits until the queue counts so much as used.
func (q queue) awaitUsed(cpu string) {
	q.t.Helper()
	until(q.t, stepTimeout, cpu+" of the quota used", func() bool {
		return cpu == q.do("get", "clusterqueue", clusterQueue, "-o",
			`jsonpath={.status.flavorsUsage[0].resources[?(@.name=="cpu")].total}`)
	})
}

// TestQueue: Kueue admits a job, drains it, and admits it again. The job is scaled beyond the
// quota, trains on meanwhile, and grows when another job goes. It shrinks when asked, which frees
// quota. It is drained first: Kueue 0.17.0 does not start a job again that has grown (kueue#12994).
func TestQueue(t *testing.T) {
	c := connect(t)
	c.cut(t) // the audit's volume is made by it
	n := c.namespace(t, "queue")
	q := n.queue()
	bucket := n.s3("")
	l := n.ledgers()
	const steps = 600
	j := &trial{ledgers: l, steps: steps, job: n.submit("trial",
		small("--steps", fmt.Sprint(steps)), "--workers", "2", "--queue", "team", "--audit-dir",
		"pvc://"+ledgerClaim+"/audit", "--checkpoint-dir", bucket("queue"), "--inject",
		"delay rank=* for=150ms phase=forward times=0")}
	j.awaitStep(submitTimeout, 1)
	j.drained(q)

	other := n.submit("other", small("--steps", "100000"), "--workers", "4", "--queue", "team",
		"--inject", paced)
	other.awaitStep(submitTimeout, 1)
	q.awaitUsed("1500m")

	if out, err := j.tell("scale", "6", "--timeout", "0"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(j.awaitLine([]string{"Kueue has no quota", "queue team"}))
	before := j.look()
	j.awaitStep(stepTimeout, before.Progress.Step+20)
	if j.seen.Generation != before.Generation || j.seen.WorldSize != 2 {
		t.Errorf("while four workers wait, generation %d of %d workers became %d of %d",
			before.Generation, before.WorldSize, j.seen.Generation, j.seen.WorldSize)
	}
	j.struck("rondo delete of the other job", 6, func() {
		if out, err := other.tell("delete", "--force"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
	j.struck("rondo scale 3", 3, func() {
		if out, err := j.tell("scale", "3"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
	q.awaitUsed("750m")
	j.end()
	j.verdict()
}

// drained has the queue drain the job and admit it again. It must go on with its state.
func (j *trial) drained(q queue) {
	j.t.Helper()
	q.stop("HoldAndDrain")
	j.t.Logf("drained: paused after %s", seconds(j.await(stepTimeout, "the job paused",
		func(s *state) bool { return s.Phase == "paused" })))
	out, err := j.tell("status")
	if err != nil || !strings.Contains(out, "team (Kueue)") {
		j.t.Errorf("rondo status of a job that waits: %v\n%s", err, out)
	}
	step, world := j.seen.Progress.Step, 2
	q.stop("None")
	j.t.Logf("admitted: %d workers did a step after %s", world, seconds(j.awaitRing(world)))
	if from := j.seen.Formed[len(j.seen.Formed)-1].Step; from < step {
		j.t.Errorf("admitted again from step %d, and step %d was done", from, step)
	}
}

// stop sets whether the queue admits and keeps jobs.
func (q queue) stop(policy string) {
	q.t.Helper()
	q.do("patch", "clusterqueue", clusterQueue, "--type", "merge", "-p",
		fmt.Sprintf(`{"spec":{"stopPolicy":%q}}`, policy))
}
