package cluster

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what the scripts in testdata should say")

// TestScripts plays testdata/*.txt. A script is a list of commands. Each is followed by ---- and
// Decide's response, up to an empty line:
//
//	job [workers=2] [min=1] [max=0] [lanes=8] [join-timeout=5m] [pause-timeout=1h]
//	    [version=] [generation=0] [order=adjacent] [next=0]   a fresh store
//	elect [lost]            a leader takes over from the store, which has lost writes
//	backup, restore         the store goes back to the plan that it had at the backup
//	join ID [host=a] [pid=] [version=] [identity=] [served=0] [seen=0]
//	                        the pid of w3 is 30
//	register ID ...         a join that the leader does not see
//	leave ID...             registrations end together
//	vanish ID               a registration ends that the leader does not see
//	fail ID TEXT            the worker cannot go on
//	fail@GENERATION ID TEXT ... in the ring of that generation
//	usage ID TEXT           ... because of the job's input
//	fatal ID TEXT           ... and neither could any other worker
//	resync ID TEXT          ... because its state may be wrong
//	suspect ID RANK TEXT    the worker accuses another one of the present ring
//	suspect@GENERATION ID RANK TEXT
//	cut@GENERATION ID ACCUSED TEXT
//	                        the worker accuses another one to which no connection opens
//	slow ID RANK TEXT       the worker accuses another one of being slow
//	leaving ID              the worker was asked to go
//	scale N
//	done ID
//	done@GENERATION ID
//	stop REASON
//	after DURATION          the clock advances, with ticks
//
// Text after a # is a comment.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := playScript(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s differs from what Decide does (-update writes it):\n%s",
					file, firstDifference(string(text), got))
			}
		})
	}
}

// playScript returns the script with the actual responses.
func playScript(t *testing.T, text string) string {
	w := &scriptWorld{now: time.Unix(0, 0)}
	var out strings.Builder
	expecting := false
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if expecting {
			expecting = line != ""
			if !expecting {
				out.WriteString("\n")
			}
			continue
		}
		out.WriteString(line + "\n")
		command, _, _ := strings.Cut(line, "#")
		if strings.TrimSpace(command) == "" {
			continue
		}
		result, err := w.run(strings.Fields(command))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out.WriteString("----\n" + result)
		expecting = true
	}
	return out.String()
}

// scriptWorld is a leader and its store.
type scriptWorld struct {
	backup  Plan
	now     time.Time
	state   State
	stored  Plan
	members []Member
}

func (w *scriptWorld) run(words []string) (string, error) {
	name, args := words[0], words[1:]
	if name == "job" {
		return w.job(args)
	}
	event, err := w.event(name, args)
	if err != nil {
		return "", err
	}
	if event == nil {
		return "ok\n", nil
	}
	before := w.state.plan
	state, actions := Decide(w.state, event, w.now)
	w.state = state
	var out strings.Builder
	if len(actions) == 0 {
		out.WriteString("nothing\n")
	}
	for _, action := range actions {
		switch a := action.(type) {
		case WritePlan:
			out.WriteString(describePlan(before, a.Plan))
			before = a.Plan
			w.stored = a.Plan
		case Notify:
			fmt.Fprintf(&out, "notify %q: %s\n", a.ID, a.Text)
		case End:
			out.WriteString("end\n")
		}
	}
	return out.String(), nil
}

func (w *scriptWorld) job(args []string) (string, error) {
	job := Job{Workers: 2, MinWorkers: 1, Lanes: 8, JoinTimeout: 5 * time.Minute,
		PauseTimeout: time.Hour}
	*w = scriptWorld{now: time.Unix(0, 0)}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(value)
		switch key {
		case "workers":
			job.Workers = n
		case "min":
			job.MinWorkers = n
		case "max":
			job.MaxWorkers = n
		case "lanes":
			job.Lanes = n
		case "next":
			job.Next = int64(n)
		case "version":
			job.Version, err = value, nil
		case "order":
			job.Spread, err = value == "spread", nil
		case "pause-timeout":
			job.PauseTimeout, err = time.ParseDuration(value)
		case "generation":
			w.stored.Generation = Generation(n)
		case "join-timeout":
			job.JoinTimeout, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("unknown setting %q", key)
		}
		if err != nil {
			return "", err
		}
	}
	w.state = NewState(job)
	if err := job.Validate(); err != nil {
		return "refused: " + err.Error() + "\n", nil
	}
	return "ok\n", nil
}

func (w *scriptWorld) event(name string, args []string) (Event, error) {
	if name == "elect" {
		return Elected{Plan: w.stored, Members: slices.Clone(w.members),
			Lost: slices.Contains(args, "lost")}, nil
	}
	if name == "backup" {
		w.backup = w.stored
		return nil, nil
	}
	if name == "restore" {
		w.stored = w.backup
		return nil, nil
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("%s needs an argument", name)
	}
	rest := strings.Join(args[1:], " ")
	name, generation, _ := strings.Cut(name, "@")
	of, _ := strconv.Atoi(generation)
	switch name {
	case "join", "register":
		m := memberOf(args)
		w.members = append(without(w.members, m.ID), m)
		if name == "register" {
			return nil, nil
		}
		return Joined{[]Member{m}}, nil
	case "leave", "vanish":
		w.members = without(w.members, args...)
		if name == "vanish" {
			return nil, nil
		}
		return Left{args}, nil
	case "fail", "usage", "fatal", "resync":
		return Failed{ID: args[0], Generation: Generation(of), Text: rest, Usage: name == "usage",
			Fatal: name == "fatal", Resync: name == "resync"}, nil
	case "suspect", "slow", "spoilt":
		if generation == "" {
			of = int(w.stored.Generation)
		}
		rank, err := strconv.Atoi(args[1])
		return Suspected{ID: args[0], Generation: Generation(of), Rank: Rank(rank),
			Text: strings.Join(args[2:], " "), Slow: name == "slow",
			Resync: name == "spoilt"}, err
	case "cut":
		rank, _ := w.state.Plan().Rank(args[1])
		return Suspected{ID: args[0], Generation: Generation(of), Rank: rank,
			Text: strings.Join(args[2:], " "), Unreachable: args[1]}, nil
	case "seated":
		if generation == "" {
			of = int(w.stored.Generation)
		}
		return Seated{args[0], Generation(of)}, nil
	case "leaving":
		return Leaving{args[0], Generation(of)}, nil
	case "scale":
		n, err := strconv.Atoi(args[0])
		return ScaleRequested{n}, err
	case "final":
		step, err := strconv.ParseInt(args[0], 10, 64)
		return Recorded{Tip{Step: step, Final: true}}, err
	case "done":
		return Done{ID: args[0], Generation: Generation(of)}, nil
	case "stop":
		return StopRequested{strings.Join(args, " ")}, nil
	case "after":
		d, err := time.ParseDuration(args[0])
		w.now = w.now.Add(d)
		return Tick{}, err
	}
	return nil, fmt.Errorf("unknown command %q", name)
}

func memberOf(args []string) Member {
	m := Member{ID: args[0], Host: "a"}
	_, _ = fmt.Sscanf(m.ID, "w%d", &m.PID)
	m.PID *= 10
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "host":
			m.Host = value
		case "pid":
			m.PID, _ = strconv.Atoi(value)
		case "version":
			m.Version = value
		case "identity":
			m.Identity = value
		case "served":
			served, _ := strconv.Atoi(value)
			m.Served = Generation(served)
		case "seen":
			seen, _ := strconv.Atoi(value)
			m.Seen = Generation(seen)
		case "process":
			m.Process = value
		}
	}
	if m.Process == "" {
		m.Process = fmt.Sprintf("%s/%d", m.Host, m.PID)
	}
	return m
}

// describePlan describes the parts of a plan that differ from the one before.
func describePlan(before, p Plan) string {
	var out strings.Builder
	result := ""
	if p.Failed {
		result = ", failed"
	}
	if p.Usage {
		result += " (usage)"
	}
	fmt.Fprintf(&out, "plan: generation %d %v%s: %s\n", p.Generation, p.Phase, result, p.Reason)
	for _, e := range p.Evicted {
		fmt.Fprintf(&out, "  evicted (%v): %s: %s\n", e.Remedy, e.ID, e.Reason)
	}
	if p.Limit != before.Limit {
		fmt.Fprintf(&out, "  at most %d workers\n", p.Limit)
	}
	if slices.Equal(before.Members, p.Members) {
		return out.String()
	}
	for r, m := range p.Members {
		from, to := p.Lanes(Rank(r))
		fmt.Fprintf(&out, "  rank %d: %s on %s, lanes [%d, %d)\n", r, m.ID, m.Host, from, to)
	}
	return out.String()
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d:\n  script: %s\n  Decide: %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines in the script, %d from Decide", len(a), len(b))
}
