package integration

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	rondov1 "rondo/proto/rondo/v1"
)

// TestLeadersAndEtcd is the matrix of faults of coordinators and etcd.
func TestLeadersAndEtcd(t *testing.T) {
	runOutside(t, []outside{
		{"kill -9 of the leader", "training is not interrupted, and the next leader leads",
			killLeader},
		{"kill -9 of the leader and a worker",
			"the next leader finds the worker gone; the others go on", killLeaderAndWorker},
		{"SIGSTOP of the leader past its lease",
			"another leads; the one that wakes up cannot write", stopLeader},
		{"etcd killed and started again", "training is not interrupted", restartEtcd},
		{"etcd away for longer than the leases",
			"the workers pause by their own clocks, and go on when it is back", outlastLeases},
		{"one of three etcd members lost", "training is not interrupted", loseEtcdMember},
		{"etcd compacted while a watch was cut off",
			"what was missed is listed anew, and the worker follows", compact},
	})
}

// survives ends the job after a worker was killed, to show that somebody leads it.
func (r *rig) survives(rank int) {
	r.t.Helper()
	dead := r.of(rank)
	dead.kill()
	r.untilRing(2, fmt.Sprintf("pid %d", dead.pid()))
	r.untilMore(10)
	r.stop(dead)
}

// uninterrupted fails the test if another ring than the first was formed.
func (r *rig) uninterrupted() {
	r.t.Helper()
	if rings := named(r.kept, "generation"); len(rings) != 1 {
		r.t.Errorf("training was interrupted: %v", rings)
	}
}

func killLeader(t *testing.T) {
	r := newRig(t, rigConfig{})
	leader := r.leader()
	r.untilMore(5)
	leader.kill()
	await(t, "the submitter leads", func() bool { return r.leads(r.cmd.Process.Pid) })
	r.untilMore(20)
	r.uninterrupted()
	r.survives(1)
}

func killLeaderAndWorker(t *testing.T) {
	r := newRig(t, rigConfig{})
	leader, dead := r.leader(), r.of(1)
	leader.signal(syscall.SIGKILL)
	dead.kill()
	r.untilRing(2, fmt.Sprintf("pid %d", dead.pid()))
	r.untilMore(10)
	r.stop(dead)
}

func stopLeader(t *testing.T) {
	r := newRig(t, rigConfig{})
	leader := r.leader()
	r.untilMore(5)
	leader.signal(syscall.SIGSTOP)
	await(t, "the submitter leads", func() bool { return r.leads(r.cmd.Process.Pid) })
	dead := r.of(1)
	dead.kill() // the stopped leader hears of it when it wakes, and would plan
	leader.signal(syscall.SIGCONT)
	r.untilRing(2, fmt.Sprintf("pid %d", dead.pid()))
	r.worker(nil)
	r.untilRing(3, "more workers have appeared")
	await(t, "the woken leader stands again", func() bool {
		return len(r.candidates()) == 2 && !r.leads(leader.pid())
	})
	r.untilMore(10)
	r.stop(dead)
	if code := leader.exitCode(); code != 0 {
		t.Errorf("the woken leader: exit code %d; it wrote:\n%s", code, leader.stderr)
	}
	r.checkPlans()
}

// checkPlans checks all plans that were stored: each was written by the leader of that moment, no
// earlier leader wrote afterwards, and no ring came twice.
func (r *rig) checkPlans() {
	r.t.Helper()
	plans, revisions := r.plans()
	since, generation := int64(0), uint64(0)
	var ring []string
	for i, p := range plans {
		answer, err := r.etcd.client.Get(request(r.t), r.key("leader/"), clientv3.WithPrefix(),
			clientv3.WithRev(revisions[i]),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil || len(answer.Kvs) == 0 {
			r.t.Errorf("nobody led at revision %d: %v", revisions[i], err)
			continue
		}
		leader := answer.Kvs[0].CreateRevision
		ids := memberIDs(p)
		if leader < since || p.Generation < generation ||
			p.Generation == generation && !slices.Equal(ids, ring) {
			r.t.Errorf("revision %d, by the leader since %d after one since %d: generation %d of "+
				"%v after generation %d of %v", revisions[i], leader, since, p.Generation, ids,
				generation, ring)
		}
		since, generation, ring = leader, p.Generation, ids
	}
	r.t.Logf("%d plans, generations up to %d", len(plans), generation)
}

func memberIDs(p *rondov1.Plan) []string {
	var ids []string
	for _, m := range p.Members {
		ids = append(ids, m.Id)
	}
	return ids
}

func restartEtcd(t *testing.T) {
	r := newRig(t, rigConfig{flags: []string{"--lease-ttl", "10s", "--regroup-timeout", "30s"}})
	r.etcd.members[0].kill()
	r.etcd.launch(0)
	r.etcd.ready(0)
	r.untilMore(20)
	r.uninterrupted()
	r.survives(1)
}

func outlastLeases(t *testing.T) {
	r := newRig(t, rigConfig{allow: allowance{gaps: true}})
	r.etcd.members[0].kill()
	for _, d := range r.workers {
		await(t, "a worker that sees its lease pass", func() bool {
			return hasAll(d.stderr.String(), []string{"lease in etcd has passed"})
		})
	}
	r.etcd.launch(0)
	r.etcd.ready(0)
	r.untilRing(3)
	r.untilMore(10)
	r.stop()
}

func loseEtcdMember(t *testing.T) {
	r := newRig(t, rigConfig{etcds: 3,
		flags: []string{"--lease-ttl", "10s", "--regroup-timeout", "30s"}})
	r.etcd.members[r.etcd.leader()].kill()
	r.untilMore(20)
	r.uninterrupted()
	r.survives(1)
}

func compact(t *testing.T) {
	r := newRig(t, rigConfig{relays: true,
		flags: []string{"--lease-ttl", "10s", "--regroup-timeout", "30s"}})
	cutOff, dead := r.of(2), r.of(1)
	r.relays[cutOff].cut()
	dead.kill()
	await(t, "a plan without the dead worker", func() bool {
		plans, _ := r.plans()
		return len(plans[len(plans)-1].Members) == 2
	})
	answer, err := r.etcd.client.Put(request(t), "/elsewhere", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.etcd.client.Compact(request(t), answer.Header.Revision,
		clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	r.relays[cutOff].heal()
	r.untilRing(2, fmt.Sprintf("pid %d", dead.pid()))
	r.untilMore(10)
	r.stop(dead)
	if rings := named(r.kept, "generation"); len(rings) != 2 {
		t.Errorf("%d rings, want 2: the worker that was cut off left: %v", len(rings), rings)
	}
}
