package jobspec

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	rondov1 "rondo/proto/rondo/v1"
)

// set gives a deadline of a spec another value.
func set(t *testing.T, spec *rondov1.JobSpec, name string, d time.Duration) {
	t.Helper()
	message := spec.ProtoReflect()
	desc := message.Descriptor().Fields().ByName(
		protoreflect.Name(strings.ReplaceAll(name, "-", "_")))
	if desc == nil {
		t.Fatalf("no field for --%s", name)
	}
	message.Set(desc, protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()))
}

// tall returns a spec whose rungs are far apart, so that one can be moved without the others.
func tall(t *testing.T) *rondov1.JobSpec {
	spec, value := Default(), time.Second
	for _, r := range Deadlines(spec) {
		if r.Flag {
			value *= 10
			set(t, spec, r.Name, value)
		}
	}
	return spec
}

// TestEveryDeadlineIsOnTheLadder holds the table against the spec's durations.
func TestEveryDeadlineIsOnTheLadder(t *testing.T) {
	onLadder := map[string]bool{}
	for _, r := range Deadlines(Default()) {
		onLadder[cmp.Or(r.Of, r.Name)] = true
	}
	for _, f := range fields() {
		if f.desc.Kind() == protoreflect.MessageKind && !onLadder[f.flagName()] {
			t.Errorf("--%s is not on the ladder", f.flagName())
		}
		delete(onLadder, f.flagName())
	}
	if len(onLadder) > 0 {
		t.Errorf("on the ladder, and no flag: %v", onLadder)
	}
}

// TestEachRungIsLongEnough moves each rung to the least that each of its needs allows, and below.
func TestEachRungIsLongEnough(t *testing.T) {
	if err := Validate(tall(t)); err != nil {
		t.Fatal(err)
	}
	checked := 0
	ladder := Deadlines(tall(t))
	flags := map[string]string{} // by rung: what moves it
	for i, r := range ladder {
		flags[r.Name] = cmp.Or(r.Of, r.Name)
		for _, need := range r.Needs {
			spec := tall(t)
			var other Rung
			for _, o := range ladder[:i] { // what a rung needs is below it
				if o.Name == need.Rung {
					other = o
				}
			}
			if other.Name == "" {
				t.Fatalf("%s needs %s, which is not below it", r.Name, need.Rung)
			}
			if flags[other.Name] == flags[r.Name] {
				continue // one follows from the other: it cannot be wrong
			}
			for _, n := range r.Needs { // the others out of the way
				if n.Rung != need.Rung {
					set(t, spec, flags[n.Rung], other.Value/4)
				}
			}
			least := time.Duration(need.Times) * other.Value
			set(t, spec, r.Name, least)
			if err := onlyAbout(validateDeadlines(spec), r.Name); err != nil {
				t.Errorf("at its least: %v", err)
			}
			set(t, spec, r.Name, least-1)
			err := validateDeadlines(spec)
			var usage *UsageError
			if !errors.As(err, &usage) {
				t.Errorf("--%s %v with %s %v: %v", r.Name, least-1, need.Rung, other.Value, err)
				continue
			}
			for _, want := range []string{"--" + r.Name + " " + (least - 1).String(),
				fmt.Sprintf("%s %v", need.Rung, other.Value), need.Why,
				"raise --" + r.Name + " or lower --" + flags[need.Rung]} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			checked++
		}
	}
	if checked != 6 {
		t.Errorf("%d needs were checked", checked)
	}
}

// onlyAbout drops an error that is not about the flag's own rung.
func onlyAbout(err error, flag string) error {
	if err != nil && strings.HasPrefix(err.Error(), "--"+flag+" ") {
		return err
	}
	return nil
}

func TestSmallDeadlinesFitTogether(t *testing.T) {
	for _, args := range []string{
		"--lease-ttl 2s --chunk-timeout 1s",
		"--lease-ttl 1s --chunk-timeout 500ms --step-timeout 1s --regroup-timeout 2s " +
			"--join-timeout 2s --pause-timeout 2s",
		"--lease-ttl 20s",
		"--chunk-timeout 100ms",
	} {
		if _, err := parse(t, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	_, err := parse(t, "--chunk-timeout", "2540400h10m10.000000000s", "--lease-ttl", "1s")
	if err == nil {
		t.Error("a chunk timeout of centuries is shorter than a lease of a second")
	}
}

func TestInjectMustBePossible(t *testing.T) {
	for _, c := range []struct{ args, inject, want string }{
		{"", "kill rank=2", "there is no such rank: 2 workers at most have ranks from 0 to 1"},
		{"--max-workers 4", "kill rank=3", ""},
		{"--max-workers 4", "kill rank=4", "there is no such rank"},
		{"--workers 1", "drop rank=0", "one worker alone sends no messages"},
		{"--workers 1", "kill rank=0 phase=carry", "one worker alone sends no messages"},
		{"--workers 1", "kill rank=* phase=load", ""},
		{"--steps 10", "nan rank=0 step=11", "there is no such step: --steps is 10"},
		{"--steps 10", "nan rank=0 step=10-12", ""},
		{"", "kill rank=0 pass=2", "there is no such pass: a step has 1 on one worker"},
		{"--accumulate 2", "kill rank=0 pass=2", ""},
		{"--batch 8 --lane-groups 4 --clip-scope group --accumulate 2", "stop rank=0 pass=8", ""},
		{"--batch 8 --lane-groups 4 --clip-scope group --accumulate 2", "stop rank=0 pass=9",
			"there is no such pass"},
		{"", "kill rank=0; explode rank=1", `"explode rank=1": unknown verb "explode"`},
	} {
		_, err := parse(t, append(strings.Fields(c.args), "--inject", c.inject)...)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %q: %v", c.args, c.inject, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "--inject: ") ||
			!strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %q: %v; want %q", c.args, c.inject, err, c.want)
		}
	}
}

func TestDeadlinesTable(t *testing.T) {
	const want = "| deadline | value | bounds | at least |\n" +
		"| --- | --- | --- | --- |\n" +
		"| `heartbeat` | 1.25s | the silence of a worker that is itself waiting; a " +
		"quarter of --chunk-timeout |  |\n" +
		"| `--chunk-timeout` | 5s | the silence of a neighbour in the ring; it must leave time " +
		"for one chunk of 1 MiB on the slowest link | 4 times heartbeat: a late sign of life is " +
		"not a death |\n" +
		"| `--lease-ttl` | 10s | the silence of a worker or leader towards etcd | twice " +
		"--chunk-timeout: the ring must report a dead worker first; the lease is the backstop |\n" +
		"| `--step-timeout` | 30s | the wait for a neighbour that lives but sends " +
		"nothing new; up to a quarter more in later ring steps | twice --chunk-timeout: the " +
		"neighbour may itself be waiting for a dead worker, and must notice first |\n" +
		"| `step across hosts` | 45s | the same wait, in the rings across hosts (--topology): " +
		"one and a half times --step-timeout | as long as --step-timeout: the neighbour may " +
		"itself be waiting for one on its host, and must notice first |\n" +
		"| `gather within a host` | 1m | the same wait, within a host for its sums " +
		"across hosts; twice --step-timeout | as long as step across hosts: the neighbour " +
		"may itself be waiting for another host, and must notice first |\n" +
		"| `--regroup-timeout` | 1m | the wait for the next ring | twice --lease-ttl: if " +
		"the leader is gone too, its lease must run out before another is elected and " +
		"plans; as long as gather within a host: the first to leave the ring waits for the last " +
		"to notice |\n" +
		"| `--join-timeout` | 5m | the wait for --workers when a job starts | as long as " +
		"--regroup-timeout: a ring that breaks in this time must be able to form again |\n" +
		"| `--pause-timeout` | 1h | the wait of a job with fewer than --min-workers, or " +
		"of a worker without etcd | as long as --join-timeout: workers come back no " +
		"faster than they come |\n"
	if got := deadlinesTable(Deadlines(Default())); got != want {
		t.Errorf("the table is now\n%s", got)
	}
}

// TestTheDocsHaveTheLadder keeps the page on failures true.
func TestTheDocsHaveTheLadder(t *testing.T) {
	page, err := os.ReadFile("../../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := deadlinesTable(Deadlines(Default())); !strings.Contains(string(page), table) {
		t.Errorf("docs/failures.md has another table of deadlines than:\n%s", table)
	}
}

// deadlinesTable renders the ladder as a table in Markdown.
func deadlinesTable(ladder []Rung) string {
	byName := map[string]Rung{}
	for _, r := range ladder {
		byName[r.Name] = r
	}
	var b strings.Builder
	b.WriteString("| deadline | value | bounds | at least |\n| --- | --- | --- | --- |\n")
	for _, r := range ladder {
		var needs []string
		for _, need := range r.Needs {
			needs = append(needs, fmt.Sprintf("%s: %s", atLeast(need, byName[need.Rung]),
				need.Why))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.label(), short(r.Value), r.Bounds,
			strings.Join(needs, "; "))
	}
	return b.String()
}

// short writes a duration without units that are zero: 5m, not 5m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
