package audit

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// cutOff returns the logs of a job in which one worker completes step 42 and is cut off. The
// others, which did not complete it, repeat it in the next ring, go on to step 45 and die. The job
// goes on from the first worker's state, of generation 1. The last ring records committed as that
// state's generation.
func cutOff(t *testing.T, committed uint64) fstest.MapFS {
	t.Helper()
	h := newHistory(t, 1)
	for seed := uint64(2); h.batches.Lanes < 3; seed++ {
		h = newHistory(t, seed)
	}
	for range 3 {
		h.join()
	}
	cut, others := h.workers[:1], h.workers[1:]
	do := func(members []*actor, from, to int64, committed uint64) {
		h.ring++
		for _, a := range members {
			check(t, a.log.Ring(Ring{Run: h.run, Generation: h.ring, From: from,
				Committed: committed, World: len(members), Accumulate: h.each,
				Batches: h.batches}))
		}
		for step := from + 1; step <= to; step++ {
			h.doStep(members, step, 2*len(members))
		}
	}
	do(h.workers, 40, 41, 1)
	h.doStep(h.workers, 42, len(h.workers)+1) // all read it, but only the first commits it
	do(others, 41, 45, 1)
	do(cut, 42, 44, committed)
	return h.logs()
}

// counted returns the steps of each ring that count.
func counted(t *testing.T, logs fstest.MapFS) string {
	t.Helper()
	p := &prover{logs: logs}
	check(t, p.scan(t.Context()))
	check(t, p.makeSampler())
	p.link()
	var all []string
	for _, r := range p.rings {
		all = append(all, fmt.Sprintf("%d: (%d, %d]", r.Generation, r.counted, r.until))
	}
	return strings.Join(all, ", ")
}

// TestTheStateSaysWhoseStepsCount: the state decides which ring's steps count, not the order of
// rings.
func TestTheStateSaysWhoseStepsCount(t *testing.T) {
	for committed, want := range map[uint64]string{
		1: "1: (40, 42], 2: (0, 0], 3: (42, 44]",
		0: "1: (40, 41], 2: (41, 42], 3: (42, 44]", // the generation is not known
	} {
		logs := cutOff(t, committed)
		if got := counted(t, logs); got != want {
			t.Errorf("committed %d: %s; want %s", committed, got, want)
		}
		report := prove(t, logs, nil)
		if !report.Sound() || report.First != 41 || report.Last != 44 || report.Repeated != 4 {
			t.Errorf("committed %d: %+v", committed, report)
		}
		without := maps.Clone(logs)
		for name, file := range logs {
			lines := slices.DeleteFunc(bytes.SplitAfter(file.Data, []byte("\n")),
				func(text []byte) bool {
					return string(text) == `{"commit":{"generation":1,"step":42}}`+"\n"
				})
			without[name] = &fstest.MapFile{Data: bytes.Join(lines, nil)}
		}
		const missing = "no ring in the logs committed step 42, from which a later one started"
		found := prove(t, without, nil).Findings
		if slices.Contains(found, missing) != (committed == 1) {
			t.Errorf("committed %d, without the commit of step 42: %q", committed, found)
		}
	}
}

// TestLogsOfBefore reads logs of older versions, whose ring lines have no "committed".
func TestLogsOfBefore(t *testing.T) {
	logs := cutOff(t, 0)
	for name, file := range logs {
		old := bytes.ReplaceAll(file.Data, []byte(`"committed":0,`), nil)
		old = bytes.ReplaceAll(old, []byte(`"committed":1,`), nil)
		logs[name] = &fstest.MapFile{Data: old}
	}
	if report := prove(t, logs, nil); !report.Sound() || report.Last != 44 {
		t.Errorf("%+v", report)
	}
	line := []byte(`{"ring":{"run":1,"generation":3,"from":1,"committed":4,"world":1}}`)
	if _, err := parse(line); err == nil {
		t.Error("a state of a generation that is to come")
	}
}
