package audit

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// threeWorkers returns a history of three workers with at least three lanes.
func threeWorkers(t *testing.T) *history {
	t.Helper()
	h := newHistory(t, 1)
	for seed := uint64(2); h.batches.Lanes < 3; seed++ {
		h = newHistory(t, seed)
	}
	for range 3 {
		h.join()
	}
	return h
}

// formRing starts a ring of workers that all have the state of the first one.
func (h *history) formRing(members []*actor, from int64) {
	h.ring++
	for rank, a := range members {
		a.digest = members[0].digest
		check(h.t, a.log.Ring(Ring{Run: h.run, Generation: h.ring, From: from, Digest: a.digest,
			World: len(members), Rank: rank, Accumulate: h.each, Batches: h.batches}))
	}
}

func (h *history) doSteps(members []*actor, from, to int64) {
	for step := from + 1; step <= to; step++ {
		h.doStep(members, step, 2*len(members))
	}
}

// cutOff returns the logs of a job in which one worker completes step 42 and is cut off. The
// others, which did not complete it, repeat it in the next ring, go on to step 45 and die. The job
// goes on from the state of step 42 that the ring of the given generation left; 0: from another.
func cutOff(t *testing.T, generation uint64) fstest.MapFS {
	t.Helper()
	h := threeWorkers(t)
	cut, others := h.workers[:1], h.workers[1:]
	h.formRing(h.workers, 40)
	h.doSteps(h.workers, 40, 41)
	before := cut[0].digest
	h.doStep(h.workers, 42, len(h.workers)+1) // all read it, but only the first commits it
	h.formRing(others, 41)
	h.doSteps(others, 41, 45)
	cut[0].digest = after(before, generation, 42)
	h.formRing(cut, 42)
	h.doSteps(cut, 42, 44)
	return h.logs()
}

// counted returns the steps of each ring that count.
func counted(t *testing.T, logs fstest.MapFS) string {
	t.Helper()
	p := &prover{logs: logs, wanted: map[int64]bool{}}
	check(t, p.scan(t.Context()))
	check(t, p.makeSampler())
	check(t, p.link(t.Context()))
	var all []string
	for _, r := range p.rings {
		all = append(all, fmt.Sprintf("%d: (%d, %d]", r.Generation, r.counted, r.until))
	}
	return strings.Join(all, ", ")
}

// TestTheStateSaysWhoseStepsCount: the parameters decide which ring's steps count, not the order of
// rings. Parameters that no ring left are found.
func TestTheStateSaysWhoseStepsCount(t *testing.T) {
	for generation, want := range map[uint64]string{
		1: "1: (40, 42], 2: (0, 0], 3: (42, 44]",
		2: "1: (40, 41], 2: (41, 42], 3: (42, 44]",
		0: "1: (40, 41], 2: (41, 42], 3: (42, 44]", // it may as well be from the latest
	} {
		logs := cutOff(t, generation)
		if got := counted(t, logs); got != want {
			t.Errorf("generation %d: %s; want %s", generation, got, want)
		}
		const others = "generation 3 starts from other parameters than the ring of generation 2 " +
			"had after step 42"
		report := prove(t, logs, nil)
		if report.Sound() != (generation != 0) || report.First != 41 || report.Last != 44 ||
			report.Repeated != 4 || slices.Contains(report.Findings, others) != (generation == 0) {
			t.Errorf("generation %d: %+v", generation, report)
		}
		lost := maps.Clone(logs)
		for name := range logs {
			lost = without(lost, name, `{"commit":{"generation":1,"step":42,`)
		}
		found := prove(t, lost, nil).Findings
		if slices.Contains(found, others) != (generation != 2) {
			t.Errorf("generation %d, without the commit of step 42: %q", generation, found)
		}
	}
}

// TestLogsOfBefore: logs of older versions, whose ring lines have no digest, are refused.
func TestLogsOfBefore(t *testing.T) {
	logs := cutOff(t, 1)
	digest := regexp.MustCompile(`"digest":\d+,`)
	for name, file := range logs {
		logs[name] = &fstest.MapFile{Data: digest.ReplaceAll(file.Data, []byte(`"committed":1,`))}
	}
	_, err := Prove(t.Context(), logs, nil, nil)
	const want = "audit logs: worker-1.jsonl: line 1 has no digest: a rondo of an older version " +
		"wrote the log"
	if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

// changedCommits returns the logs with the commit lines of some steps of a worker's log replaced.
func changedCommits(
	t *testing.T, logs fstest.MapFS, name string, change func(c *commitLine),
) fstest.MapFS {
	t.Helper()
	changed := maps.Clone(logs)
	var text []byte
	for _, old := range textLines(logs[name].Data) {
		entry, err := parse(old)
		check(t, err)
		if entry.Commit != nil {
			change(entry.Commit)
		}
		text = entry.append(text)
	}
	changed[name] = &fstest.MapFile{Data: text}
	return changed
}

// TestOtherParameters: a worker whose parameters differ from the others' may take no part in the
// next step, and no step may leave it open which parameters are the job's.
func TestOtherParameters(t *testing.T) {
	h := threeWorkers(t)
	h.formRing(h.workers, 0)
	h.doSteps(h.workers, 0, 9)
	logs := h.logs()
	if !prove(t, logs, nil).Sound() {
		t.Fatal("the logs are not sound")
	}
	const c = "worker-3.jsonl"
	differ := func(logs fstest.MapFS, name string, step int64) fstest.MapFS {
		return changedCommits(t, logs, name, func(c *commitLine) {
			if c.Step == step {
				c.Digest += uint64(len(name)) << (step % 8)
			}
		})
	}
	if r := prove(t, differ(logs, c, 9), nil); !r.Sound() ||
		!slices.Equal(r.Corrupt, []string{"worker-3 after step 9"}) {
		t.Errorf("after the last step: %+v", r)
	}
	part := "step 6 of generation 1 was computed with the parameters of worker-3, which were not " +
		"most workers' after the step before"
	if r := prove(t, differ(logs, c, 5), nil); !slices.Equal(r.Findings, []string{part}) {
		t.Errorf("it took part: %q", r.Findings)
	}
	pair := maps.Clone(logs)
	for name, file := range differ(differ(logs, c, 5), "worker-2.jsonl", 5) {
		pair[name] = file
	}
	pair = changedCommits(t, pair, "worker-2.jsonl", func(c *commitLine) {
		if c.Step == 5 {
			c.Digest++ // the third one that is different
		}
	})
	open := "step 5 of generation 1: no more than half of the workers had the same parameters " +
		"after it"
	if r := prove(t, pair, nil); !slices.Equal(r.Findings, []string{open}) {
		t.Errorf("each has others: %q", r.Findings)
	}
}

// TestSkippedSteps: the report names the steps that changed nothing, and who caused it.
func TestSkippedSteps(t *testing.T) {
	h := threeWorkers(t)
	h.formRing(h.workers, 0)
	h.doSteps(h.workers, 0, 12)
	logs := h.logs()
	for name := range logs {
		logs = changedCommits(t, logs, name, func(c *commitLine) {
			switch {
			case c.Step >= 3 && c.Step <= 5:
				c.Skipped, c.Nonfinite, c.Rank = true, 1, 2
			case c.Step == 6:
				c.Skipped, c.Nonfinite, c.Rank = true, 1, 0
			case c.Step == 8:
				c.Skipped, c.Nonfinite = true, 2
			case c.Step == 10:
				c.Skipped, c.Random = true, true
			}
		})
	}
	r := prove(t, logs, nil)
	var got []string
	for _, skip := range r.Skips {
		got = append(got, skip.String())
	}
	want := []string{"steps 3 to 5: rank 2 (worker-3) was not finite",
		"step 6: rank 0 (worker-1) was not finite", "step 8: 2 ranks were not finite",
		"step 10: the sum of all ranks was not finite; random steps were taken instead"}
	if !r.Sound() || r.Skipped != 6 || !slices.Equal(got, want) {
		t.Errorf("%d skipped: %q, %q", r.Skipped, got, r.Findings)
	}
	logs = changedCommits(t, logs, "worker-1.jsonl", func(c *commitLine) {
		if c.Step == 4 {
			c.Skipped, c.Nonfinite, c.Rank = false, 0, 0
		}
	})
	if prove(t, logs, nil).Sound() {
		t.Error("one worker skipped no step, and it took part in the next")
	}
}

// TestStates: a checkpoint must have the parameters that its step left.
func TestStates(t *testing.T) {
	logs := cutOff(t, 1)
	digests := map[string]uint64{} // by generation and step
	for _, p := range places(t, logs) {
		if c := p.entry.Commit; c != nil {
			digests[fmt.Sprint(c.Generation, c.Step)] = c.Digest
		}
	}
	for _, c := range []struct {
		State
		finding string
	}{
		{State{Step: 41, Digest: digests["1 41"]}, ""},
		{State{Step: 42, Digest: digests["1 42"]}, ""},
		{State{Step: 44, Digest: digests["3 44"]}, ""},
		{State{Step: 12, Digest: 7}, ""}, // of before the logs
		{State{Step: 42, Digest: digests["2 42"]}, "x has other parameters than the ring of " +
			"generation 1 had after step 42"}, // that ring does not count
		{State{Step: 43, Digest: digests["3 44"]}, "x has other parameters than the ring of " +
			"generation 3 had after step 43"},
		{State{Step: 45, Digest: digests["2 45"]}, "x is of step 45, and the last step in the " +
			"logs is 44"},
		{State{Step: 44}, "x has no digest: a rondo of an older version saved it"},
	} {
		c.Path = "x"
		r, err := Prove(t.Context(), logs, nil, []State{c.State})
		check(t, err)
		want, states := []string{}, 1
		if c.finding != "" {
			want, states = []string{c.finding}, 0
		}
		if c.Step < r.First {
			states = 0
		}
		if !slices.Equal(r.Findings, want) || r.States != states {
			t.Errorf("step %d: %q, %d states", c.Step, r.Findings, r.States)
		}
	}
}

// TestReplayedSegments: segments that were read to compute lost states are reported.
func TestReplayedSegments(t *testing.T) {
	h := threeWorkers(t)
	h.formRing(h.workers, 0)
	h.doSteps(h.workers, 0, 4)
	logs := h.logs()
	for name, file := range logs {
		logs[name] = &fstest.MapFile{Data: bytes.Replace(file.Data, []byte("}}\n"),
			[]byte(`,"replayed":35}}`+"\n"), 1)}
	}
	if r := prove(t, logs, nil); !r.Sound() || r.Replayed != 35 {
		t.Errorf("%+v", r)
	}
}

// TestLanesOfTwoWorkers: a lane that two workers read for one segment of a committed step is found,
// even if both read it at its position.
func TestLanesOfTwoWorkers(t *testing.T) {
	h := threeWorkers(t)
	h.each = 2
	h.formRing(h.workers, 0)
	h.doSteps(h.workers, 0, 3)
	logs := h.logs()
	for _, at := range places(t, logs) {
		if at.entry.Read == nil {
			continue
		}
		twice := *at.entry.Read
		end := twice.First + len(twice.Offsets)
		if end == h.batches.Lanes {
			continue
		}
		segment := (twice.Step-1)*int64(h.each) + int64(twice.Segment)
		twice.Offsets = append(slices.Clone(twice.Offsets), h.sampler.Offset(segment, end))
		text := (&line{Read: &twice}).append(nil)
		changed := edited(logs, at, bytes.TrimSuffix(text, []byte("\n")))
		next := map[string]string{"worker-1.jsonl": "worker-2", "worker-2.jsonl": "worker-3"}
		want := fmt.Sprintf("step %d of generation 1: segment %d, lanes %d to %d were read twice, "+
			"the second time by %s", twice.Step, twice.Segment, end, end, next[at.file])
		if got := prove(t, changed, nil).Findings; !slices.Equal(got, []string{want}) {
			t.Errorf("found %q; want %q", got, want)
		}
	}
}
