package integration

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	rondov1 "rondo/proto/rondo/v1"
)

// rig is a trial whose parts are processes of their own: etcd, workers, coordinators that stand
// by, and the submitter, which leads at first and shows the events.
type rig struct {
	*trial
	job     string
	etcd    *etcds
	workers []*daemon
	relays  map[*daemon]*relay // each worker's way to etcd, if it goes through one
	hosts   map[*daemon]*host
	flags   []string // of every process: --etcd and --job
	folder  string   // of the workers' and coordinators' binaries
}

// rigConfig holds the differences between rigs.
type rigConfig struct {
	workers int      // 0: 3
	etcds   int      // members of etcd; 0: one
	flags   []string // of the job, besides the trials'
	allow   allowance
	network *network // nil: all on this machine
	relays  bool     // each worker reaches etcd through a relay
	hosts   []string // what each worker calls its host; nil: as it is called
	// binaries is the folder of the workers' and coordinators' binaries; empty: as all tests have.
	binaries string
}

// newRig starts everything and waits until the job trains.
func newRig(t *testing.T, c rigConfig) *rig {
	t.Helper()
	r := &rig{job: "rig", relays: map[*daemon]*relay{}, hosts: map[*daemon]*host{},
		folder: cmp.Or(c.binaries, binaries)}
	members := make([]*host, max(1, c.etcds))
	members[0] = c.network.host("etcd")
	r.etcd = startEtcds(t, members...)
	r.flags = r.place(r.etcd.endpoints()...)
	workers := c.workers
	if workers == 0 {
		workers = 3
	}
	r.trial = tryOn(t, c.network.host("lead"), c.allow, slices.Concat(r.flags, []string{
		"--workers", fmt.Sprint(workers), "--local-workers", "0", "--inject", paced,
		"--insecure"}, c.flags)...)
	for i := range workers {
		if c.relays {
			way := newRelay(t, r.etcd.endpoints()[0])
			r.relays[r.worker(nil, way.address())] = way
			continue
		}
		on := c.network.host(fmt.Sprintf("node%d", i))
		if c.hosts != nil {
			d := r.daemon(on, "worker", slices.Concat(r.flags, []string{"--host", c.hosts[i]}))
			r.workers = append(r.workers, d)
			continue
		}
		r.hosts[r.worker(on)] = on
	}
	r.untilRing(workers)
	r.untilStep(3)
	return r
}

// place is the address at which a process finds the job.
func (r *rig) place(endpoints ...string) []string {
	return []string{"--etcd", strings.Join(endpoints, ","), "--job", r.job}
}

// worker starts a worker, which reaches etcd by other endpoints if there are any.
func (r *rig) worker(on *host, endpoints ...string) *daemon {
	r.t.Helper()
	flags := r.flags
	if len(endpoints) > 0 {
		flags = r.place(endpoints...)
	}
	d := r.daemon(on, "worker", flags)
	r.workers = append(r.workers, d)
	return d
}

// coordinator starts a coordinator and waits until it stands for the leadership.
func (r *rig) coordinator() *daemon {
	r.t.Helper()
	d := r.daemon(nil, "coordinator", r.flags)
	await(r.t, "a coordinator that stands by", func() bool {
		for _, c := range r.candidates() {
			if c.is(d.pid()) {
				return true
			}
		}
		return false
	})
	return d
}

// trusting are the flags of a worker whose job may name any file and fault.
func trusting() []string { return []string{"--allow-path=/", "--allow-inject"} }

func (r *rig) daemon(on *host, name string, flags []string) *daemon {
	r.t.Helper()
	switch name {
	case "worker":
		flags = slices.Concat(flags, trusting(), []string{"--insecure"})
	case "coordinator":
		flags = slices.Concat(flags, []string{"--insecure"})
	}
	return launch(r.t, on, environment(r.t),
		append([]string{filepath.Join(r.folder, name)}, flags...)...)
}

// of is the worker that has a rank.
func (r *rig) of(rank int) *daemon {
	r.t.Helper()
	id := r.seated(rank).text("id") // one that is told its host has a pid of its own making
	for _, d := range r.workers {
		if strings.Contains(id, fmt.Sprintf("-%d-", d.pid())) {
			return d
		}
	}
	r.t.Fatalf("rank %d is %s, which is not one of ours", rank, id)
	return nil
}

// candidate is a coordinator that stands for the leadership.
type candidate struct {
	id    string
	since int64 // revision
	lease clientv3.LeaseID
}

// is reports whether it is the coordinator of a process.
func (c candidate) is(pid int) bool { return strings.Contains(c.id, fmt.Sprintf("-%d-", pid)) }

// candidates are those that stand now, the leader first.
func (r *rig) candidates() []candidate {
	r.t.Helper()
	answer, err := r.etcd.client.Get(request(r.t), r.key("leader/"), clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		r.t.Fatal(err)
	}
	var out []candidate
	for _, kv := range answer.Kvs {
		leader := &rondov1.Leader{}
		if err := proto.Unmarshal(kv.Value, leader); err != nil {
			r.t.Fatal(err)
		}
		out = append(out, candidate{leader.Id, kv.CreateRevision, clientv3.LeaseID(kv.Lease)})
	}
	return out
}

func (r *rig) key(name string) string { return "/rondo/" + r.job + "/" + name }

// leads reports whether a process leads the job.
func (r *rig) leads(pid int) bool {
	r.t.Helper()
	all := r.candidates()
	return len(all) > 0 && all[0].is(pid)
}

// depose ends the leader's lease, so that the next candidate leads.
func (r *rig) depose() {
	r.t.Helper()
	r.allow.gaps = true
	if _, err := r.etcd.client.Revoke(request(r.t), r.candidates()[0].lease); err != nil {
		r.t.Fatal(err)
	}
}

// leader starts a coordinator and has it lead.
func (r *rig) leader() *daemon {
	r.t.Helper()
	d := r.coordinator()
	r.depose()
	await(r.t, "the coordinator leads", func() bool { return r.leads(d.pid()) })
	return d
}

// registered reports whether a process is registered as a worker.
func (r *rig) registered(pid int) bool {
	r.t.Helper()
	answer, err := r.etcd.client.Get(request(r.t), r.key("members/"), clientv3.WithPrefix())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, kv := range answer.Kvs {
		member := &rondov1.Member{}
		if err := proto.Unmarshal(kv.Value, member); err != nil {
			r.t.Fatal(err)
		}
		if int(member.Pid) == pid {
			return true
		}
	}
	return false
}

// pastLease stops a worker with SIGSTOP until its lease has passed in etcd.
func (r *rig) pastLease(d *daemon) {
	r.t.Helper()
	d.signal(syscall.SIGSTOP)
	await(r.t, "the stopped worker's lease passes", func() bool { return !r.registered(d.pid()) })
}

// stop ends the job, and holds every process that is not excused to exit code 0.
func (r *rig) stop(excused ...*daemon) []event {
	r.t.Helper()
	events := r.trial.stop()
	for _, d := range r.workers {
		if code := d.exitCode(); code != 0 && !slices.Contains(excused, d) {
			r.t.Errorf("worker process %d: exit code %d; it wrote:\n%s", d.pid(), code, d.stderr)
		}
	}
	return events
}

// plans are all plans that were stored, in order, with the revisions at which they were.
func (r *rig) plans() (plans []*rondov1.Plan, revisions []int64) {
	r.t.Helper()
	seen := int64(0)
	for revision := int64(0); ; {
		answer, err := r.etcd.client.Get(request(r.t), r.key("plan"), clientv3.WithRev(revision))
		if err != nil {
			r.t.Fatal(err)
		}
		if len(answer.Kvs) == 0 {
			break
		}
		kv := answer.Kvs[0]
		if seen != 0 && kv.ModRevision >= seen {
			r.t.Fatalf("revision %d of the plan was not before %d", kv.ModRevision, seen)
		}
		plan := &rondov1.Plan{}
		if err := proto.Unmarshal(kv.Value, plan); err != nil {
			r.t.Fatal(err)
		}
		plans = append([]*rondov1.Plan{plan}, plans...)
		revisions = append([]int64{kv.ModRevision}, revisions...)
		seen, revision = kv.ModRevision, kv.ModRevision-1
		if kv.ModRevision == kv.CreateRevision {
			break
		}
	}
	return plans, revisions
}
