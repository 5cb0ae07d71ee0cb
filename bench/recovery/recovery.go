package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"rondo/bench/internal/killtrace"
	"rondo/compute"
)

// vocabulary is how many tokens --normalize letters gives: 26 letters, space and <unk>.
const vocabulary = 28

// endless is more steps than any job here takes.
const endless = 1 << 40

type config struct {
	Rondo, Worker, Coordinator string
	Python, Script             string
	Parts                      string
	Hidden, Batch, BPTT        int
	Threads, Workers           int
	SaveEvery                  int
	Kills, PeerKills           int
	AgentKills                 int
	Joins, Takeovers           int
	Seed                       uint64
	LeaseTTL, Timeout, Limit   time.Duration
	Calm                       time.Duration
	Trace                      string
}

func (c config) validate() error {
	switch {
	case c.Workers < 2:
		return errors.New("-workers: somebody must survive: give at least 2")
	case c.Batch < c.Workers+1:
		return errors.New("-batch: a lane for each worker, and for one more")
	case min(c.Kills, c.PeerKills, c.AgentKills, c.Joins, c.Takeovers) < 1:
		return errors.New("-kills, -peer-kills, -agent-kills, -joins, -takeovers: at least 1 each")
	}
	return nil
}

// parameters of an LSTM of one layer over one-hot tokens, and its linear layer.
func (c config) parameters() int {
	h, v := c.Hidden, vocabulary
	return compute.LSTM.Gates()*h*(v+h+2) + h*v + v
}

// shape is the flags that both sides have under the same names.
func (c config) shape() []string {
	return []string{"--cell", "lstm", "--hidden", strconv.Itoa(c.Hidden), "--layers", "1",
		"--embed", "0", "--batch", strconv.Itoa(c.Batch), "--bptt", strconv.Itoa(c.BPTT),
		"--threads", strconv.Itoa(c.Threads)}
}

func (c config) newTarget(s *stage) *target {
	return &target{stage: s, sight: newSight(int64(c.Workers)), timeout: c.Timeout,
		calm: c.Calm, rng: rand.New(rand.NewPCG(c.Seed, 0)), strike: killProcess}
}

// rondoTrain is a job of `rondo train`, which starts workers that died again.
func (c config) rondoTrain(s *stage) (*target, error) {
	argv := []string{c.Rondo, "train", "--json", "--workers", strconv.Itoa(c.Workers),
		"--normalize", "letters", "--optimizer", "sgd", "--lr", "0.1", "--clip", "1",
		"--lr-schedule", "constant", "--dropout", "0", "--validation-fraction", "0",
		"--steps", strconv.Itoa(endless), "--sample-tokens", "0", "--resume", "never",
		"--device", "cpu", "--checkpoint-dir", "none", "--dashboard", "off",
		"--restarts", strconv.Itoa(c.Kills), "--lease-ttl", c.LeaseTTL.String()}
	p, err := s.start("rondo train", append(argv, c.shape()...)...)
	if err != nil {
		return nil, err
	}
	t := c.newTarget(s)
	t.vital = p
	return t, nil
}

// A part is one of the measurements.
type part struct {
	name string
	run  func(context.Context, *report) error
}

// parts in the order in which they run.
func (c config) parts() []part {
	killing := func(row string, n int, start func(*stage) (*target, error)) func(
		context.Context, *report) error {
		return func(ctx context.Context, r *report) error { return c.kills(ctx, r, row, n, start) }
	}
	agents := func(conf string, early bool) func(*stage) (*target, error) {
		return func(s *stage) (*target, error) { return c.manyAgents(s, conf, early) }
	}
	return []part{
		{"kills", killing("rondo train", c.Kills, c.rondoTrain)},
		{"torchrun", killing("torchrun, one agent", c.PeerKills, c.oneAgent)},
		{"agents", killing("torchrun, an agent each, defaults", c.AgentKills, agents("", false))},
		{"agents-replaced", killing("torchrun, an agent each, replaced at once", c.AgentKills,
			agents("", true))},
		{"agents-quick", killing("torchrun, an agent each, last call 1 s", c.AgentKills,
			agents("last_call_timeout=1", false))},
		{"joins", c.joins},
		{"takeovers", c.takeovers},
	}
}

// run measures the parts named in config.Parts and prints the results.
func run(ctx context.Context, c config, out, log io.Writer) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	// The kernel ends the processes with the thread that started them.
	runtime.LockOSThread()
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit,
		fmt.Errorf("not done within %v (-limit)", c.Limit))
	defer cancel()
	fmt.Fprintf(out, "LSTM, hidden %d, %d parameters, %d lanes of %d tokens, %d workers of %d "+
		"threads; seed %d\n\n", c.Hidden, c.parameters(), c.Batch, c.BPTT, c.Workers, c.Threads,
		c.Seed)
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(c.Parts, ",") {
		wanted[name] = true
	}
	r := &report{log: log}
	for _, p := range c.parts() {
		if wanted[p.name] || wanted["all"] {
			fmt.Fprintf(log, "%s …\n", p.name)
			if failed := p.run(ctx, r); failed != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", p.name, failed))
			}
			delete(wanted, p.name)
		}
	}
	delete(wanted, "all")
	for name := range wanted {
		err = errors.Join(err, fmt.Errorf("-parts: there is no %q", name))
	}
	if c.Trace != "" {
		err = errors.Join(err, killtrace.Write(c.Trace, r.traces))
	}
	return errors.Join(err, r.print(out))
}

// kills lets a job run, and kills a worker again and again.
func (c config) kills(ctx context.Context, r *report, row string, n int,
	start func(*stage) (*target, error)) (err error) {
	s, err := newStage()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	t, err := start(s)
	if err != nil {
		return err
	}
	var losses []loss
	defer func() {
		r.losses(row, t.sight.pace, losses)
		r.traces = append(r.traces, newTrace(row, t.sight.steps, losses))
	}()
	for i := range n {
		cost, err := t.kill(ctx, int64(i))
		if err != nil {
			return err
		}
		fmt.Fprintf(r.log, "  rank %d killed: next step after %.3f s, a new one after %.3f s, "+
			"%d steps again\n", cost.rank, cost.next.Seconds(), cost.fresh.Seconds(), cost.again)
		losses = append(losses, cost)
	}
	return t.listen(ctx, c.Calm)
}

// inRoom does something a number of times to a job whose processes stand alone.
func (c config) inRoom(ctx context.Context, n int, do func(context.Context, *machineRoom) error) (
	err error) {
	s, err := newStage()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	room, err := c.openRoom(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, room.close()) }()
	for range n {
		if err := do(ctx, room); err != nil {
			return err
		}
	}
	return nil
}

func (c config) joins(ctx context.Context, r *report) error {
	var all []entry
	defer func() { r.entries(all) }()
	return c.inRoom(ctx, c.Joins, func(ctx context.Context, room *machineRoom) error {
		e, err := room.join(ctx)
		if err == nil {
			all = append(all, e)
			fmt.Fprintf(r.log, "  a worker joined: step %.3f s after its start, %.3f s after its "+
				"registration; %.3f s between steps, %.3f s of that before the ring was formed\n",
				e.start.Seconds(), e.registered.Seconds(), e.pause.Seconds(), e.forming.Seconds())
		}
		return err
	})
}

func (c config) takeovers(ctx context.Context, r *report) error {
	var all []succession
	defer func() { r.successions(all) }()
	return c.inRoom(ctx, c.Takeovers, func(ctx context.Context, room *machineRoom) error {
		s, err := room.takeover(ctx)
		if err == nil {
			all = append(all, s)
			fmt.Fprintf(r.log, "  leader killed: another after %.3f s, %.3f s between steps at "+
				"most\n", s.served.Seconds(), s.longest.Seconds())
		}
		return err
	})
}

// report collects the tables.
type report struct {
	log    io.Writer
	kills  []string
	others []string
	traces []killtrace.Job
	base   float64 // Rondo's median time to a new step
}

// row is a line of a table: a name, the number of measurements, and their percentiles in seconds.
func row(what string, durations []time.Duration) string {
	all := seconds(durations)
	return fmt.Sprintf("%s\t%d\t%.3f\t%.3f\t%.3f\t", what, len(all), percentile(all, 0.5),
		percentile(all, 0.95), percentile(all, 1))
}

// each returns one member of all.
func each[T any](all []T, member func(T) time.Duration) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, one := range all {
		out[i] = member(one)
	}
	return out
}

// losses adds a job's kills. The first job is the one that the others are held against.
func (r *report) losses(name string, pace []time.Duration, all []loss) {
	if len(all) == 0 {
		return
	}
	usual := percentile(seconds(pace), 0.5)
	again := 0.0
	for _, l := range all {
		again += float64(l.again) / float64(len(all))
	}
	fresh := each(all, func(l loss) time.Duration { return l.fresh })
	median := percentile(seconds(fresh), 0.5)
	if r.base == 0 {
		r.base = median
	}
	next := each(all, func(l loss) time.Duration { return l.next })
	r.kills = append(r.kills,
		row(name+": to the next step", next)+fmt.Sprintf("%.0f\t\t\t", 1000*usual),
		row(name+": to a new step", fresh)+fmt.Sprintf("%.0f\t%.1f\t%.1f\t%.1fx", 1000*usual,
			median/usual, again, median/r.base))
	var joins []time.Duration
	for _, l := range all {
		if l.join > 0 {
			joins = append(joins, l.join)
		}
	}
	if len(joins) > 0 {
		r.kills = append(r.kills, row(name+": an agent joins", joins)+"\t\t\t")
	}
}

func (r *report) entries(all []entry) {
	if len(all) == 0 {
		return
	}
	r.others = append(r.others,
		row("a worker joins: from its start to a step", each(all,
			func(e entry) time.Duration { return e.start })),
		row("  from its registration to a step", each(all,
			func(e entry) time.Duration { return e.registered })),
		row("  between the others' steps", each(all,
			func(e entry) time.Duration { return e.pause })),
		row("  of that, to form the ring and copy the state", each(all,
			func(e entry) time.Duration { return e.forming })),
		row("a worker goes (SIGTERM): between steps", each(all,
			func(e entry) time.Duration { return e.leave })))
}

func (r *report) successions(all []succession) {
	if len(all) == 0 {
		return
	}
	r.others = append(r.others,
		row("the leader is killed: until another serves", each(all,
			func(s succession) time.Duration { return s.served })),
		row("  longest time between steps meanwhile", each(all,
			func(s succession) time.Duration { return s.longest })),
		row("  the same over as many steps afterwards", each(all,
			func(s succession) time.Duration { return s.control })),
		row("  usual time between steps", each(all,
			func(s succession) time.Duration { return s.usual })))
}

// print writes the tables.
func (r *report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "\ttimes\tp50, s\tp95, s\tmax, s\t"
	if len(r.kills) > 0 {
		fmt.Fprintln(w, "kill -9 of a worker"+head+"step, ms\tin steps\tdone again\tratio")
		fmt.Fprintln(w, strings.Join(r.kills, "\n"))
		fmt.Fprintln(w)
	}
	if len(r.others) > 0 {
		fmt.Fprintln(w, "Rondo"+head)
		fmt.Fprintln(w, strings.Join(r.others, "\n"))
	}
	return w.Flush()
}
