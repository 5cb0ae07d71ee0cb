package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// stormVariable holds the number of a storm's rounds.
	stormVariable = "RONDO_STORM_ROUNDS"

	stormNodes     = 4 // hosts of workers
	workersPerNode = 2
	stormWorld     = stormNodes * workersPerNode
	stormLeaders   = 3  // coordinators, on the first hosts of workers
	stormCalm      = 30 // steps of the full ring before a round, at most
)

// stormJob are the keys of the job's YAML file, and the flags of the undisturbed job.
var stormJob = map[string]string{
	"max_tokens": "20000", "validation_fraction": "0", "layers": "2", "hidden": "16",
	"dropout": "0.2", "batch": "8", "bptt": "8", "optimizer": "adam", "lr": "0.002",
	"lr_schedule": "constant", "epochs": "0", "sample_tokens": "0", "seed": "7",
	"reduce": "canonical", "clip_scope": "global",
}

// stormDeadlines are as short as a busy machine lets them be.
var stormDeadlines = map[string]string{
	"lease_ttl": "4s", "chunk_timeout": "2s", "step_timeout": "10s", "regroup_timeout": "1m",
	"join_timeout": "5m", "pause_timeout": "10m",
}

// storm is a job on hosts of a network. Two members of etcd have hosts without workers, so that
// its majority outlives any two hosts of workers.
type storm struct {
	*rig
	rng   *rand.Rand
	nodes []*node
	spec  string // file
	watch *watch
}

// node is a host of workers. The first have a coordinator, too, and the very first a member of
// etcd.
type node struct {
	*host
	number  int
	running []*daemon
}

// strike is how a host is lost.
type strike string

const (
	killed   strike = "killed"   // SIGKILL of all processes
	cut      strike = "cut off"  // from the network; then its processes are killed
	isolated strike = "isolated" // cut off; its processes come back with the network
)

// A loss is one round: two hosts at once, and what it took.
type loss struct {
	strikes [2]strike
	leader  bool          // it was on one of them
	took    time.Duration // from the first signal to the first step that none had committed
	again   int           // committed steps that were done again
	stood   bool          // the machine stood still meanwhile: took says nothing
}

// kind tells the losses apart whose recovery takes different ways.
func (l loss) kind() string {
	text := "both " + string(l.strikes[0])
	if l.strikes[0] != l.strikes[1] {
		text = string(l.strikes[0]) + " and " + string(l.strikes[1])
	}
	if l.leader {
		text += ", with the leader"
	}
	return text
}

// TestStorm: any two hosts of workers at once, with the leader and a member of etcd on them or not,
// are lost again and again. No committed step is done again but the one in flight, and the final
// checkpoint is that of the undisturbed job, bit by bit.
func TestStorm(t *testing.T) {
	text := os.Getenv(stormVariable)
	if text == "" {
		t.Skip("it takes minutes: `make storm` runs it, or " + stormVariable + "=10")
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds < 1 {
		t.Fatalf("%s=%q is no number of rounds: %v", stormVariable, text, err)
	}
	s := newStorm(t)
	var losses []loss
	for n := range rounds {
		l := s.round(n)
		losses = append(losses, l)
		t.Logf("round %d: %s: %v to the next step, %d done again", n+1, l.kind(),
			l.took.Round(time.Millisecond), l.again)
	}
	s.finish()
	tell(t, losses)
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	network, dir := newNetwork(t), t.TempDir()
	s := &storm{rig: &rig{job: "storm", folder: binaries, trial: &trial{t: t,
		audit: filepath.Join(dir, "audit")}}, rng: rand.New(rand.NewPCG(21, 2))}
	for i := range stormNodes {
		s.nodes = append(s.nodes, &node{host: network.host(fmt.Sprintf("node%d", i)), number: i})
	}
	s.etcd = startEtcds(t, s.nodes[0].host, network.host("store1"), network.host("store2"))
	s.flags = s.place(s.etcd.endpoints()...)
	s.spec = write(t, "storm.yaml", yamlOf(stormJob, stormDeadlines, map[string]string{
		"steps": "100000000", "workers": fmt.Sprint(stormWorld), "min_workers": "2",
		"audit_dir": s.audit, "checkpoint_dir": filepath.Join(dir, "run"),
		"checkpoint_every": "100", "check_every": "20", "inject": strconv.Quote(soakPace)}))
	s.watch = newWatch(t, s.audit)
	for _, n := range s.nodes {
		s.start(n)
	}
	return s
}

// yamlOf writes keys and values as YAML.
func yamlOf(all ...map[string]string) string {
	var out strings.Builder
	for _, keys := range all {
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			fmt.Fprintf(&out, "%s: %s\n", key, keys[key])
		}
	}
	return out.String()
}

// start starts a node's workers, and its coordinator.
func (s *storm) start(n *node) {
	s.t.Helper()
	if n.number < stormLeaders {
		n.running = append(n.running, s.daemon(n.host, "coordinator", slices.Concat(s.flags,
			[]string{"--spec", s.spec, "--run", "1"})))
	}
	for range workersPerNode {
		n.running = append(n.running, s.daemon(n.host, "worker", s.flags))
	}
}

// processes are all processes on a node.
func (s *storm) processes(n *node) []*daemon {
	if n.number > 0 {
		return n.running
	}
	return append(slices.Clone(n.running), s.etcd.members[0])
}

// round loses two hosts, waits for the next step, and brings them back.
func (s *storm) round(number int) (l loss) {
	s.t.Helper()
	s.calm()
	lost := s.rng.Perm(stormNodes)[:2]
	ways := []strike{killed, killed, cut, isolated}
	for i := range lost {
		l.strikes[i] = ways[s.rng.IntN(len(ways))]
	}
	slices.Sort(l.strikes[:])
	leader := s.candidates()[0]
	for _, i := range lost {
		l.leader = l.leader || slices.ContainsFunc(s.nodes[i].running,
			func(d *daemon) bool { return leader.is(d.pid()) })
	}
	what := fmt.Sprintf("round %d, hosts %v, %s", number+1, lost, l.kind())
	s.watch.begin()
	began := time.Now()
	for i, n := range lost {
		s.strike(s.nodes[n], l.strikes[i])
	}
	s.watch.untilBeyond(what)
	l.took, l.stood = time.Since(began), s.watch.stood
	s.watch.untilMore(what, 1+s.rng.IntN(5))
	for i, n := range lost {
		s.bringBack(s.nodes[n], l.strikes[i])
	}
	s.watch.untilWorld(what, stormWorld)
	if l.again = len(s.watch.again); l.again > 1 {
		s.t.Fatalf("%s: the steps %v were done again, and at most one may be", what,
			slices.Sorted(maps.Keys(s.watch.again)))
	}
	return l
}

// calm waits until all are there: workers in one ring, coordinators, and members of etcd.
func (s *storm) calm() {
	s.t.Helper()
	s.watch.untilWorld("before a round", stormWorld)
	await(s.t, "three coordinators stand for the leadership", func() bool {
		return len(s.candidates()) == stormLeaders
	})
	for i, config := range s.etcd.configs {
		await(s.t, fmt.Sprintf("member %d of etcd follows its leader", i), func() bool {
			status, err := s.etcd.client.Status(request(s.t), config.Client)
			return err == nil && status.Leader != 0 && len(status.Errors) == 0
		})
	}
	s.watch.untilWorld("before a round", stormWorld)
	s.watch.untilMore("before a round", s.rng.IntN(stormCalm))
}

// strike loses a host.
func (s *storm) strike(n *node, how strike) {
	s.t.Helper()
	if how != killed {
		if err := n.Unplug(); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	for _, d := range s.processes(n) {
		d.signal(syscall.SIGKILL)
	}
}

// bringBack undoes strike, with new processes or, on an isolated host, with those of before.
func (s *storm) bringBack(n *node, how strike) {
	s.t.Helper()
	if how == cut {
		for _, d := range s.processes(n) {
			d.signal(syscall.SIGKILL)
		}
	}
	if how != killed {
		if err := n.Plug(); err != nil {
			s.t.Fatal(err)
		}
	}
	if how == isolated {
		return
	}
	for _, d := range s.processes(n) {
		<-d.ended
		d.dismiss()
		s.watch.drop(d.pid())
	}
	if n.number == 0 {
		s.etcd.launch(0)
	}
	n.running = nil
	s.start(n)
}

// finish stops the job, and compares its checkpoint with that of the undisturbed job.
func (s *storm) finish() {
	s.t.Helper()
	s.watch.untilWorld("before the end", stormWorld)
	stop := launch(s.t, s.etcd.on[1], environment(s.t), append([]string{
		filepath.Join(binaries, "rondo"), "stop"}, s.flags...)...)
	if code := stop.exitCode(); code != 0 {
		s.t.Fatalf("rondo stop: exit code %d: %s", code, stop.stderr)
	}
	for _, n := range s.nodes {
		for _, d := range n.running {
			if code := d.exitCode(); code != 0 {
				s.t.Errorf("%v: exit code %d; it wrote:\n%s", d.cmd.Args, code, d.stderr)
			}
		}
	}
	steps := fmt.Sprint(s.watch.end())
	dir, undisturbed := filepath.Join(filepath.Dir(s.audit), "run"), s.t.TempDir()
	// One thread does not wait for another on a busy machine, and computes the same bits.
	flags := []string{"--steps", steps, "--workers", "1", "--threads", "1", "--checkpoint-dir",
		undisturbed, "--checkpoint-every", "0"}
	for key, value := range stormJob {
		flags = append(flags, "--"+strings.ReplaceAll(key, "_", "-"), value)
	}
	startFor(s.t, nil, time.Hour, append([]string{"train"}, flags...)...).succeed()
	got, want := contents(s.t, dir, steps), contents(s.t, undisturbed, steps)
	if !maps.Equal(got, want) {
		s.t.Errorf("the checkpoint of step %s has the SHA-256 %v, and the undisturbed job's %v",
			steps, got, want)
	}
	s.t.Logf("step %s: %v, as without the storm", steps, got)
	code, stdout, stderr := run(s.t, "audit", s.audit, "--corpus", "builtin:opticks",
		"--max-tokens", stormJob["max_tokens"], "--validation-fraction", "0", "--checkpoint-dir",
		dir)
	if code != 0 {
		s.t.Errorf("rondo audit: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// contents are the SHA-256 of the files of a step's checkpoint.
func contents(t *testing.T, dir, step string) map[string]string {
	t.Helper()
	number, err := strconv.Atoi(step)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("step-%08d", number),
		"manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Files []struct{ Name, SHA256 string }
	}
	if err := json.Unmarshal(text, &manifest); err != nil || len(manifest.Files) == 0 {
		t.Fatalf("%s: %v", text, err)
	}
	all := map[string]string{}
	for _, f := range manifest.Files {
		all[f.Name] = f.SHA256
	}
	return all
}

// tell prints the time to the next step, by kind and of all rounds.
func tell(t *testing.T, losses []loss) {
	t.Helper()
	groups := map[string][]time.Duration{}
	again, stood := 0, 0
	for _, l := range losses {
		again += l.again
		if l.stood {
			stood++
			continue
		}
		for _, name := range []string{"all rounds", l.kind()} {
			groups[name] = append(groups[name], l.took)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(groups[b]), len(groups[a])), cmp.Compare(a, b))
	}) {
		took := groups[name]
		slices.Sort(took)
		at := func(percent int) time.Duration {
			return took[(len(took)*percent+99)/100-1].Round(time.Millisecond)
		}
		t.Logf("to the next step, %s: p50 %v, p99 %v (%d rounds)", name, at(50), at(99),
			len(took))
	}
	t.Logf("%d steps done again in %d rounds; the machine stood still in %d of them", again,
		len(losses), stood)
}
