package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"rondo/cluster"
	"rondo/dashboard"
	"rondo/job/jobspec"
	"rondo/k8s/kube"
	"rondo/k8s/kube/kubetest"
	"rondo/telemetry"
)

// notebook is a Job that records calls.
type notebook struct {
	told []kube.Progress
	says kube.Wanted // the answer to the next read
	err  error

	forgotten int
	events    []kube.Event
}

func (n *notebook) Read(context.Context) (kube.Wanted, error) { return n.says, n.err }

func (n *notebook) Annotate(_ context.Context, p kube.Progress, _ time.Time) error {
	if n.err == nil {
		n.told = append(n.told, p)
	}
	return n.err
}

func (n *notebook) Forgotten(context.Context) error {
	n.forgotten++
	return n.err
}

func (n *notebook) Tell(_ context.Context, e kube.Event, _ time.Time) error {
	n.events = append(n.events, e)
	return n.err
}

func (n *notebook) Leave(context.Context) error { return nil }

func (n *notebook) Watch(ctx context.Context, _ func(kube.Wanted), _ func(error)) error {
	<-ctx.Done()
	return ctx.Err()
}

// bench is a keeper whose surroundings a test sets.
type bench struct {
	*keeper
	t        *testing.T
	job      *notebook
	at       time.Time
	state    dashboard.State
	view     cluster.View
	asked    []int
	stops    []string // reasons
	forgets  int
	answer   error
	troubles []string
	notices  []string
}

func newBench(t *testing.T) *bench {
	spec := jobspec.Textbook()
	spec.Workers, spec.Submitted = 2, 1
	text, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, job: &notebook{}, at: time.Unix(1000, 0)}
	b.view = cluster.View{Spec: text, Plan: running(1),
		Leader: cluster.Leader{ID: "coordinator-demo-coordinator-5d-x7-1"}}
	b.state.Phase = telemetry.PhaseRunning
	b.keeper = &keeper{beside: &Beside{Job: b.job, Pod: "demo-coordinator-5d-x7"},
		events: flowcontrol.NewFakeAlwaysRateLimiter(),
		now:    func() time.Time { return b.at }, state: func() dashboard.State { return b.state },
		trouble: func(text string) { b.troubles = append(b.troubles, text) },
		notice:  func(text string) { b.notices = append(b.notices, text) }}
	return b
}

// wants changes the Job's wishes and wakes a watch.
func (b *bench) wants(w kube.Wanted) {
	b.job.says = w
	b.want(w)
}

// look observes the job after a time.
func (b *bench) look(after time.Duration) {
	b.at = b.at.Add(after)
	b.take(b.t.Context(), found{view: b.view, scale: func(_ context.Context, workers int) error {
		b.asked = append(b.asked, workers)
		return b.answer
	}, stop: func(_ context.Context, reason string) error {
		b.stops = append(b.stops, reason)
		return b.answer
	}, forget: func(context.Context) error {
		b.forgets++
		return b.answer
	}})
}

// steps are those that the Job was told of.
func (b *bench) steps() (steps []int64) {
	for _, p := range b.job.told {
		steps = append(steps, p.Step)
	}
	return steps
}

// The Job's annotations are written every ten seconds for steps or without a change, after five
// seconds for rare changes, at once for another phase, and once a minute after the end.
func TestKeeperTellsTheJob(t *testing.T) {
	b := newBench(t)
	for step := range int64(32) {
		b.state.Progress.Step = step + 1
		b.look(time.Second)
	}
	if got := b.steps(); !slices.Equal(got, []int64{1, 11, 21, 31}) {
		t.Errorf("the Job was told of steps %v", got)
	}
	b.state.WorldSize = 3
	for range 6 {
		b.look(time.Second)
	}
	if got := b.job.told; len(got) != 5 || got[4].WorldSize != 3 {
		t.Errorf("of another world size the Job was told %+v", got[4:])
	}
	for range 20 { // two more times, so that it is not taken for lost
		b.look(time.Second)
	}
	if n := len(b.job.told); n != 7 {
		t.Errorf("the Job was told %d times that the job goes on, want 2", n-5)
	}
	b.state.Phase = telemetry.PhaseEnded
	b.state.Checkpoints = []dashboard.Checkpoint{{Step: 5, Path: "runs/5"},
		{Step: 12, Path: "runs/12"}}
	b.view.Leader = cluster.Leader{} // it has left, as the job has ended
	b.look(time.Second)
	last := b.job.told[len(b.job.told)-1]
	if last.Phase != telemetry.PhaseEnded || last.Step != 32 || last.CheckpointStep != 12 ||
		last.Checkpoint != "runs/12" {
		t.Errorf("at the end the Job was told %+v", last)
	}
	told := len(b.job.told)
	for range 59 {
		b.look(time.Second)
	}
	if n := len(b.job.told); n != told {
		t.Errorf("the Job was told %d times more of the same", n-told)
	}
	b.look(time.Second)
	if n := len(b.job.told); n != told+1 {
		t.Errorf("the Job was not told that it is still watched")
	}
}

// An API server that does not take it is asked again, no sooner than five seconds later.
func TestKeeperOutlastsTheServer(t *testing.T) {
	b := newBench(t)
	b.job.err = errors.New("away")
	b.look(time.Second)
	b.job.err = nil
	b.look(time.Second)
	if len(b.job.told) != 0 || fmt.Sprint(b.troubles) != "[away]" {
		t.Errorf("told %v, troubles %q", b.job.told, b.troubles)
	}
	b.look(writeEvery)
	if len(b.job.told) != 1 || b.troubles[len(b.troubles)-1] != "" {
		t.Errorf("told %v, troubles %q", b.job.told, b.troubles)
	}
}

// The end is told by another observer where that of the last leader is gone, once, with its event,
// and to the Job of that run alone.
func TestKeeperTellsOfTheEndOfAnother(t *testing.T) {
	for what, c := range map[string]struct {
		leader string
		says   kube.Wanted
		told   int
	}{
		"failed":          {"", kube.Wanted{Run: 1}, 1},
		"told":            {"", kube.Wanted{Run: 1, Over: true}, 0},
		"the next run":    {"", kube.Wanted{Run: 2}, 0},
		"another leads":   {"coordinator-other-1", kube.Wanted{Run: 1}, 0},
		"nobody can tell": {"", kube.Wanted{}, 0},
	} {
		b := newBench(t)
		b.view.Leader.ID = "coordinator-other-1"
		b.look(time.Second)
		b.state.Phase, b.view.Plan.Phase = telemetry.PhaseEnded, cluster.Ended
		b.view.Leader.ID, b.job.says = c.leader, c.says
		b.look(time.Second)
		if len(b.job.told) > 0 {
			t.Errorf("%s: the last leader's observer was given no time", what)
		}
		for range 120 {
			b.look(time.Second)
			b.job.says.Over = b.job.says.Over || len(b.job.told) > 0
		}
		done := 0
		for _, e := range b.job.events {
			if e.Reason == "Done" {
				done++
			}
		}
		if len(b.job.told) != c.told || done != c.told {
			t.Errorf("%s: the Job was told %+v, with events %+v", what, b.job.told, b.job.events)
		}
	}
}

// The leader of an ended run writes nothing to the Job of the next one.
func TestKeeperLeavesTheNextRunAlone(t *testing.T) {
	b := newBench(t)
	b.wants(kube.Wanted{Workers: 2, Run: 1})
	b.look(time.Second)
	b.state.Phase, b.view.Plan.Phase = telemetry.PhaseEnded, cluster.Ended
	b.view.Leader = cluster.Leader{}
	b.wants(kube.Wanted{Workers: 2, Run: 2})
	told := len(b.job.told)
	b.look(time.Hour)
	if told != 1 || len(b.job.told) != told {
		t.Errorf("told %+v", b.job.told)
	}
}

// A watched state of the Job may be old, so the Job is read before the leader is asked. An observer
// that cannot read it asks for nothing.
func TestKeeperReadsBeforeItScales(t *testing.T) {
	b := newBench(t)
	b.view.Plan.Limit = 6
	b.want(kube.Wanted{Workers: 4}) // of old
	b.job.err = errors.New("away")
	b.look(time.Second)
	b.look(time.Hour)
	if len(b.asked) > 0 {
		t.Errorf("without the API server the leader is asked for %v", b.asked)
	}
	b.job.err, b.job.says = nil, kube.Wanted{Workers: 6}
	b.look(time.Hour)
	b.look(time.Hour)
	if len(b.asked) > 0 {
		t.Errorf("the leader is asked for %v, but the Job has 6", b.asked)
	}
	b.want(kube.Wanted{Workers: 4})
	b.job.says = kube.Wanted{Workers: 4, Suspended: true}
	b.look(time.Hour)
	if len(b.asked) > 0 {
		t.Errorf("the leader of a suspended Job is asked for %v", b.asked)
	}
}

// Only the observer in the leader's pod speaks for the job.
func TestKeeperOfAnotherPod(t *testing.T) {
	for leader, ours := range map[string]bool{"coordinator-demo-coordinator-5d-x7-1": true,
		"coordinator-demo-coordinator-5d-x7-1-ab12": true,
		"coordinator-demo-coordinator-5d-x77-1":     false,
		"coordinator-other-1":                       false, "": false} {
		b := newBench(t)
		b.view.Leader.ID = leader
		b.wants(kube.Wanted{Workers: 5})
		b.look(time.Second)
		if told := len(b.job.told) == 1; told != ours || (len(b.asked) == 1) != ours {
			t.Errorf("leader %q: told %t, asked %v", leader, told, b.asked)
		}
	}
}

// The leader is asked for as many workers as the Job is to have, and for nothing that it has, that
// it has refused, or that nobody wants.
func TestKeeperScales(t *testing.T) {
	b := newBench(t)
	asks := func(what string, want ...int) {
		t.Helper()
		b.look(time.Second)
		if !slices.Equal(b.asked, want) {
			t.Errorf("%s: the leader is asked for %v, want %v", what, b.asked, want)
		}
		b.asked = nil
	}
	asks("nothing is known of the Job")
	b.wants(kube.Wanted{Workers: 2})
	asks("as many as the spec says")
	b.wants(kube.Wanted{Workers: 4, Suspended: true})
	asks("suspended")
	b.wants(kube.Wanted{Workers: 4})
	b.answer = errors.New("no coordinator answered")
	asks("more", 4)
	asks("not answered, a second later")
	b.at = b.at.Add(askAgain)
	b.answer = nil
	asks("not answered, later", 4)
	b.view.Plan.Limit = 4
	asks("it is so")
	b.wants(kube.Wanted{Workers: 3})
	asks("fewer", 3)
	b.view.Plan.Limit = 3
	b.wants(kube.Wanted{Workers: 6})
	b.view.Plan.Phase = cluster.Ended
	asks("ended")
}

// The leader is asked to stop once, by the observer in its pod, and again after a while.
func TestKeeperStops(t *testing.T) {
	b := newBench(t)
	b.look(time.Second)
	b.wants(kube.Wanted{Workers: 2, Run: 1, Stop: "rondo stop"})
	b.view.Leader.ID = "coordinator-other-1"
	b.look(time.Second)
	if len(b.stops) > 0 {
		t.Errorf("another pod's leader is asked: %q", b.stops)
	}
	b.view.Leader.ID = "coordinator-demo-coordinator-5d-x7-1"
	b.answer = errors.New("no coordinator answered")
	b.look(time.Second)
	b.look(time.Second)
	b.answer = nil
	b.look(askAgain)
	if !slices.Equal(b.stops, []string{"rondo stop", "rondo stop"}) || len(b.notices) != 1 {
		t.Errorf("asked %q, notices %q", b.stops, b.notices)
	}
	b.view.Plan.Phase = cluster.Stopping
	b.look(time.Hour)
	if len(b.stops) != 2 {
		t.Errorf("a job that stops is asked: %q", b.stops)
	}
	b.view.Plan.Phase = cluster.Running
	b.want(kube.Wanted{Workers: 2, Run: 1, Stop: "of old"})
	b.job.says = kube.Wanted{Workers: 2, Run: 1}
	b.look(time.Hour)
	if len(b.stops) != 2 {
		t.Errorf("asked for what nobody wants any more: %q", b.stops)
	}
}

// A job that etcd is to forget is stopped first. Any observer has it forgotten when it has ended,
// but not the run that came after it.
func TestKeeperForgets(t *testing.T) {
	b := newBench(t)
	b.wants(kube.Wanted{Workers: 2, Run: 1, Forget: true})
	b.look(time.Second)
	if b.forgets > 0 || !slices.Equal(b.stops, []string{forgetReason}) {
		t.Errorf("of a job that trains: %d times, stopped %q", b.forgets, b.stops)
	}
	b.view.Plan.Phase = cluster.Ended
	b.view.Leader.ID = "coordinator-other-1"
	b.look(time.Second)
	if b.forgets != 1 || b.job.forgotten != 1 {
		t.Errorf("forgotten %d times, said so %d times", b.forgets, b.job.forgotten)
	}
	b.wants(kube.Wanted{Workers: 2, Run: 0, Forget: true})
	b.look(time.Second)
	if b.forgets != 1 {
		t.Error("a newer run is forgotten")
	}
}

// The end is told when the leader has told of the last checkpoint, or has had the time to.
func TestKeeperWaitsForTheLastCheckpoint(t *testing.T) {
	for _, heard := range []bool{true, false} {
		b := newBench(t)
		b.view.Plan.Phase, b.state.Phase = cluster.Ended, telemetry.PhaseEnded
		b.view.Plan.Members = []cluster.Member{{ID: "w"}}
		b.look(time.Second)
		if len(b.job.told) > 0 {
			t.Errorf("told %+v", b.job.told)
		}
		if heard {
			b.state.Notices = []dashboard.Notice{{Kind: telemetry.KindDone}}
			b.look(time.Second)
		} else {
			b.look(doneTimeout)
		}
		if len(b.job.told) != 1 || b.job.told[0].Phase != telemetry.PhaseEnded {
			t.Errorf("heard %t: told %+v", heard, b.job.told)
		}
	}
}

// The annotations have the ring, its leader, and the evicted workers.
func TestKeeperTellsOfTheRing(t *testing.T) {
	b := newBench(t)
	b.view.Plan.Members = []cluster.Member{{ID: "y", Address: "192.0.2.5:7000"},
		{ID: "x", Address: "[2001:db8::4]:7000"}}
	b.view.Plan.LaneEnds = []cluster.Lane{3, 6}
	b.view.Members = []cluster.Member{{ID: "z"}}
	b.view.Plan.Evicted = []cluster.Eviction{{ID: "z", Reason: "too slow"},
		{ID: "gone", Reason: "lost"}}
	b.look(time.Second)
	if p := b.job.told[0]; p.Ring != "192.0.2.5=0-3,2001:db8::4=3-6" ||
		p.Leader != "demo-coordinator-5d-x7" || p.Evicted != "z (too slow)" {
		t.Errorf("told %+v", p)
	}
}

// A refusal stands in the annotation, until something else is wanted.
func TestKeeperTellsOfARefusal(t *testing.T) {
	j := newJob(t)
	j.submit(1)
	j.lead("pod-a")
	j.join("w1")
	j.join("w2")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	client, err := j.where.Client(j.store, limit)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	b.wants(kube.Wanted{Workers: 99})
	for range 3 {
		b.at = b.at.Add(time.Minute)
		b.take(ctx, found{view: b.view, scale: func(ctx context.Context, workers int) error {
			b.asked = append(b.asked, workers)
			return client.Scale(ctx, workers)
		}})
	}
	if !slices.Equal(b.asked, []int{99}) || len(b.notices) != 1 {
		t.Errorf("asked for %v, notices %q", b.asked, b.notices)
	}
	last := b.job.told[len(b.job.told)-1]
	if !strings.Contains(last.Reason, "99 workers") || !strings.Contains(last.Reason, "--batch") {
		t.Errorf("the reason is %q", last.Reason)
	}
	b.wants(kube.Wanted{Workers: 2})
	b.look(time.Minute)
	if last := b.job.told[len(b.job.told)-1]; last.Reason != "" {
		t.Errorf("the reason is still %q", last.Reason)
	}
}

// Beside a Job, the observer in the leader's pod writes the job's progress into its annotations,
// and lets the ring grow with the Job.
func TestObserveBesideAJob(t *testing.T) {
	workers := int32(2)
	client := kubetest.New(&batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-worker", Namespace: "lab"},
		Spec:       batchv1.JobSpec{Parallelism: &workers}})
	cluster := &kube.Cluster{Client: client, Namespace: "lab"}
	j := newJob(t)
	o := j.observe(&Beside{Job: cluster.WorkerJob("demo-worker"), Pod: "pod-a"})
	j.submit(1)
	j.lead("pod-a")
	for _, id := range []string{"w1", "w2", "w3"} {
		j.join(id)
	}
	o.until("a ring of 2", func(s shown) bool { return s.Phase == "running" && s.ring() == 2 })
	jobs := client.BatchV1().Jobs("lab")
	_, err := jobs.Patch(t.Context(), "demo-worker", types.MergePatchType,
		[]byte(`{"spec":{"parallelism":3}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.until("a ring of 3", func(s shown) bool { return s.ring() == 3 })
	o.until("the annotations", func(shown) bool {
		job, err := jobs.Get(t.Context(), "demo-worker", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		said := job.Annotations
		return said["rondo.dev/phase"] == "running" && said["rondo.dev/world-size"] == "3"
	})
	if err := o.stop(); err != nil {
		t.Errorf("the observer ended with %v", err)
	}
}
