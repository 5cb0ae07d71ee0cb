package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"rondo/corpus"
)

// histories is the number of simulated histories. Their seeds start at 1.
const histories = 80

func prove(t *testing.T, logs fstest.MapFS, tokens corpus.Tokens) *Report {
	t.Helper()
	report, err := Prove(t.Context(), logs, tokens, nil)
	check(t, err)
	if report.Sound() {
		want := (report.Last - report.First + 1) * int64(report.Lanes*report.Each)
		if want != report.Segments {
			t.Errorf("%d segments counted; want %d", report.Segments, want)
		}
	}
	return report
}

// TestHistoriesProve: jobs that fail in many ways, but lose and repeat nothing, are proved.
func TestHistoriesProve(t *testing.T) {
	var repeated, runs, rings int64
	for seed := range uint64(histories) {
		h := newHistory(t, seed+1)
		logs := h.play(1 + int(seed%9))
		report := prove(t, logs, h.text)
		if !report.Sound() {
			t.Fatalf("seed %d: %q", seed+1, report.Findings)
		}
		if report.First != h.first+1 || report.Last != h.last || report.Workers != len(logs) {
			t.Fatalf("seed %d: %+v; want steps %d to %d", seed+1, report, h.first+1, h.last)
		}
		repeated, runs = repeated+report.Repeated, runs+int64(report.Runs)
		rings += int64(report.Rings)
	}
	if repeated < histories || runs < histories+histories/4 || rings < 3*histories {
		t.Errorf("the histories are tame: %d repeated attempts, %d runs, %d rings", repeated, runs,
			rings)
	}
}

// place is a line with its position.
type place struct {
	file   string
	index  int
	entry  line
	run    int64
	gen    uint64
	follow line // the next line of the same log
}

// places lists all lines of all logs.
func places(t *testing.T, logs fstest.MapFS) (all []place) {
	t.Helper()
	for _, file := range slices.Sorted(maps.Keys(logs)) {
		var run int64
		var gen uint64
		for i, text := range textLines(logs[file].Data) {
			entry, err := parse(text)
			check(t, err)
			if entry.Ring != nil {
				run, gen = entry.Ring.Run, entry.Ring.Generation
			}
			if i > 0 {
				all[len(all)-1].follow = entry
			}
			all = append(all, place{file: file, index: i, entry: entry, run: run, gen: gen})
		}
	}
	return all
}

func textLines(data []byte) [][]byte {
	if len(data) == 0 {
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

// edited returns the logs with one line replaced.
func edited(logs fstest.MapFS, at place, with ...[]byte) fstest.MapFS {
	lines := slices.Replace(slices.Clone(textLines(logs[at.file].Data)), at.index, at.index+1,
		with...)
	changed := maps.Clone(logs)
	data := bytes.Join(lines, []byte("\n"))
	if len(lines) > 0 {
		data = append(data, '\n')
	}
	changed[at.file] = &fstest.MapFile{Data: data}
	return changed
}

// commits counts the workers that committed a step in a ring.
func commits(all []place, of place, step int64) (n int) {
	for _, p := range all {
		if p.run == of.run && p.gen == of.gen && p.entry.Commit != nil &&
			p.entry.Commit.Step == step {
			n++
		}
	}
	return n
}

// TestTamperingIsFound changes every line of a history in turn. A change may go unnoticed only if
// the logs cannot show it. The report must then describe a history that is possible.
func TestTamperingIsFound(t *testing.T) {
	found, harmless := map[string]int{}, map[string]int{}
	for seed := range uint64(histories / 8) {
		h := newHistory(t, seed+1)
		logs := h.play(2 + int(seed%5))
		whole := prove(t, logs, h.text)
		all := places(t, logs)
		for _, at := range all {
			for name, changed := range tamperings(logs, at) {
				report := prove(t, changed, h.text)
				if !report.Sound() {
					found[name]++
					continue
				}
				harmless[name]++
				if why := mustBeFound(all, at, name, whole, report); why != "" {
					t.Fatalf("seed %d: %s of %s line %d %s is not found: %s", seed+1, name,
						at.file, at.index+1, textLines(logs[at.file].Data)[at.index], why)
				}
			}
		}
	}
	t.Logf("found %v, harmless %v", found, harmless)
	for _, name := range []string{"shift", "crc", "repeat", "drop", "lanes", "swap"} {
		if found[name] < 100 {
			t.Errorf("%s was found %d times", name, found[name])
		}
	}
}

// tamperings returns all ways of changing one line.
func tamperings(logs fstest.MapFS, at place) map[string]fstest.MapFS {
	text := textLines(logs[at.file].Data)[at.index]
	ways := map[string]fstest.MapFS{"drop": edited(logs, at),
		"repeat": edited(logs, at, text, text)}
	if read := at.entry.Read; read != nil {
		shifted, spoiled, moved, later := *read, *read, *read, *read
		shifted.Offsets = slices.Clone(read.Offsets)
		shifted.Offsets[len(read.Offsets)/2]++
		spoiled.CRC ^= 1 << 7
		moved.First++
		later.Step++
		for name, changed := range map[string]*readLine{"shift": &shifted, "crc": &spoiled,
			"lanes": &moved, "later": &later} {
			entry := line{Read: changed}
			ways[name] = edited(logs, at, bytes.TrimSuffix(entry.append(nil), []byte("\n")))
		}
	}
	if at.follow.Commit != nil && at.entry.Read != nil {
		lines := textLines(logs[at.file].Data)
		swapped := edited(logs, at, lines[at.index+1])
		at.index++
		ways["swap"] = edited(swapped, at, text)
	}
	return ways
}

// mustBeFound returns why an unnoticed change should have been found, or "".
func mustBeFound(all []place, at place, how string, whole, now *Report) string {
	same := now.First == whole.First && now.Last == whole.Last
	switch {
	case how != "drop" && how != "repeat":
		return "it is wrong wherever it is"
	case how == "repeat" && at.entry.Ring == nil:
		return "nothing is done twice in a ring"
	case how == "repeat" && !same:
		return "a ring that begins twice before its first step changes nothing"
	case how == "repeat":
		return ""
	case at.entry.Ring != nil:
		if at.follow.Read != nil {
			return "what follows is of no ring"
		}
		return "" // a worker that did nothing in the ring may be missing
	case at.entry.Read != nil:
		if commits(all, at, at.entry.Read.Step) > 0 {
			return "the step was committed"
		}
		if !same {
			return "an attempt that came to nothing changed the history"
		}
		return ""
	}
	step := at.entry.Commit.Step
	switch n := commits(all, at, step); {
	case at.follow.Read != nil:
		return "its worker went on to the next step"
	case n > 1 && !same:
		return "another committed it"
	case n == 1 && !same && step != whole.Last:
		return "only the end of the history can get lost"
	}
	return ""
}

// TestMissingLogsAreFound removes each log in turn. The loss must be found if another worker
// committed a step in a ring with the lost one.
func TestMissingLogsAreFound(t *testing.T) {
	found := 0
	for seed := range uint64(histories) {
		h := newHistory(t, seed+1)
		logs := h.play(2 + int(seed%5))
		all := places(t, logs)
		for file := range logs {
			rest := maps.Clone(logs)
			delete(rest, file)
			if len(rest) == 0 || len(places(t, rest)) == 0 {
				continue
			}
			missed := false
			for _, p := range all {
				if p.file == file && p.entry.Read != nil {
					others := slices.DeleteFunc(slices.Clone(all), func(q place) bool {
						return q.file == file
					})
					missed = missed || commits(others, p, p.entry.Read.Step) > 0
				}
			}
			if report := prove(t, rest, nil); missed && report.Sound() {
				t.Fatalf("seed %d: %s is not missed: %+v", seed+1, file, report)
			} else if missed {
				found++
			}
		}
	}
	if found < histories/4 {
		t.Errorf("only %d logs were missed", found)
	}
}

// TestTornLine cuts the last line of a log at every byte. The report counts it, but not as a
// finding.
func TestTornLine(t *testing.T) {
	logs := newHistory(t, 3).play(4)
	for file := range logs {
		data := logs[file].Data
		begin := bytes.LastIndexByte(bytes.TrimSuffix(data, []byte("\n")), '\n') + 1
		for cut := begin + 1; cut < len(data); cut++ {
			changed := maps.Clone(logs)
			changed[file] = &fstest.MapFile{Data: data[:cut]}
			report := prove(t, changed, nil)
			if report.Torn != 1 {
				t.Fatalf("cut at %d of %d: %+v", cut, len(data), report)
			}
			for _, finding := range report.Findings {
				if strings.Contains(finding, "is not a line") {
					t.Fatalf("cut at %d: %s", cut, finding)
				}
			}
		}
	}
}

// ringText returns the log line of a ring.
func ringText(r Ring) string { return string((&line{Ring: newRingLine(r)}).append(nil)) }

// TestDifferencesInWords: differences between rings of one job are reported by flag.
func TestDifferencesInWords(t *testing.T) {
	ring := Ring{Run: 1, Generation: 4, From: 41, World: 3, Batches: corpus.SamplerConfig{
		Tokens: 1000, Lanes: 8, BPTT: 5, Seed: 1, Sampling: corpus.Sequential}}
	next, other, same := ring, ring, ring
	next.Generation, other.Generation, same.From, same.World = 7, 7, 40, 2
	other.From, other.World = 50, 2 // these may differ between any two rings
	other.Batches = corpus.SamplerConfig{Tokens: 1001, Lanes: 16, BPTT: 6, Seed: 2,
		Sampling: corpus.Random}
	next.Batches.Lanes = 16
	const another = "b.jsonl line 1: the ring of generation 7 belongs to another job than the " +
		"ring of generation 4 in a.jsonl: "
	for second, want := range map[Ring]string{
		next: another + "--batch 8 and 16",
		other: another + "--batch 8 and 16, --bptt 5 and 6, --sampling sequential and random, " +
			"--seed 1 and 2, tokens of the text 1000 and 1001",
		same: "b.jsonl line 1: the ring of generation 4 differs from a.jsonl: workers " +
			"2 and 3, steps done before 40 and 41",
	} {
		logs := fstest.MapFS{"a.jsonl": {Data: []byte(ringText(ring))},
			"b.jsonl": {Data: []byte(ringText(second))}}
		if got := prove(t, logs, nil).Findings; len(got) == 0 || got[0] != want {
			t.Errorf("found %q; want %q", got, want)
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	text := strings.Repeat("nonsense\n", maxFindings+7)
	report := prove(t, fstest.MapFS{"a.jsonl": {Data: []byte(text)}}, nil)
	// plus one: there is no ring
	if len(report.Findings) != maxFindings || report.More != 8 {
		t.Errorf("%d findings and %d more", len(report.Findings), report.More)
	}
	if report.Findings[0] != "a.jsonl line 1 is not a line of an audit log" {
		t.Error(report.Findings[0])
	}
}

// TestHugeSteps: a step so large that the number of its segment overflows an int64 is a finding.
func TestHugeSteps(t *testing.T) {
	for finding, line := range map[string]string{
		"is not a possible read":       `"read":{"generation":1,"step":N,"offsets":[0]}`,
		"commits an impossible step":   `"commit":{"generation":1,"step":N}`,
		"describes an impossible ring": `"ring":{"run":1,"from":N,"digest":0,"world":1}`,
	} {
		line = "{" + strings.Replace(line, "N", "9223372036854775807", 1) + "}\n"
		report := prove(t, fstest.MapFS{"a.jsonl": {Data: []byte(line)}}, nil)
		if got := report.Findings[0]; got != "a.jsonl line 1 "+finding {
			t.Errorf("%s: %s", line, got)
		}
	}
}

func TestNothingToProve(t *testing.T) {
	if _, err := Prove(t.Context(), fstest.MapFS{}, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "no audit log (*.jsonl) is there") {
		t.Error(err)
	}
	h := newHistory(t, 5)
	logs := h.play(3)
	if _, err := Prove(t.Context(), logs, h.text[1:], nil); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("the text has %d tokens", len(h.text)-1)) {
		t.Error(err)
	}
}

// TestLinesAreJSON compares the handwritten encoding with encoding/json.
func TestLinesAreJSON(t *testing.T) {
	for _, e := range []line{
		{Ring: newRingLine(Ring{Run: -1, Generation: 1<<64 - 1, From: 3, World: 4,
			Batches: corpus.SamplerConfig{Tokens: 5, Lanes: 6, BPTT: 7, Seed: 1<<64 - 2,
				Sampling: corpus.Sequential}})},
		{Read: &readLine{Generation: 1, Step: 2, First: 3, Offsets: []int64{4, 5}, CRC: 6}},
		{Commit: &commitLine{Generation: 1, Step: 2, Digest: 1<<64 - 3}},
		{Commit: &commitLine{Generation: 1, Step: 2, Skipped: true, Nonfinite: 3, Rank: 4}},
	} {
		text := e.append(nil)
		var back line
		check(t, json.Unmarshal(text, &back))
		if fmt.Sprint(back.Ring, back.Read, back.Commit) !=
			fmt.Sprint(e.Ring, e.Read, e.Commit) || text[len(text)-1] != '\n' {
			t.Errorf("%s reads as %+v", text, back)
		}
	}
}

// FuzzCanonical compares canonical with encoding/json.
func FuzzCanonical(f *testing.F) {
	f.Add([]byte(`{"read":{"generation":1,"step":2,"first":3,"offsets":[4,50],"crc":6}}`))
	f.Add([]byte(`{"commit":{"generation":18446744073709551615,"step":9223372036854775807,` +
		`"digest":3}}`))
	f.Add([]byte(`{"commit":{"generation":1,"step":2,"digest":0,"skipped":true,"nonfinite":1,` +
		`"rank":7}}`))
	f.Add([]byte(`{"read":{"generation":1,"step":02,"first":3,"offsets":[],"crc":4294967296}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		short, ok := canonical(text)
		if !ok {
			return
		}
		var long line
		if err := json.Unmarshal(text, &long); err != nil || !reflect.DeepEqual(short, long) {
			t.Errorf("%s reads as %+v, and as %+v, %v", text, short, long, err)
		}
		if !bytes.Equal(append(text, '\n'), short.append(nil)) {
			t.Errorf("%s is written as %s", text, short.append(nil))
		}
	})
}

// TestLogsAreCanonical: canonical parses all read and commit lines that Log writes.
func TestLogsAreCanonical(t *testing.T) {
	for _, file := range newHistory(t, 4).play(3) {
		for _, text := range textLines(file.Data) {
			if _, ok := canonical(text); ok == bytes.HasPrefix(text, []byte(`{"ring"`)) {
				t.Errorf("%s: %v", text, ok)
			}
		}
	}
}

func FuzzProve(f *testing.F) {
	f.Add([]byte(`{"ring":{"run":1,"generation":1,"from":0,"digest":7,"world":1,"lanes":1,`+
		`"bptt":2,"tokens":9,"seed":1,"sampling":"sequential"}}`+"\n"+
		`{"read":{"generation":1,"step":1,"first":0,"offsets":[1],"crc":1}}`+"\n"+
		`{"commit":{"generation":1,"step":1,"digest":8}}`+"\n"), []byte("x\n"))
	f.Add([]byte("{}\n{\"read\":"), []byte(`{"commit":{"step":-1}}`+"\n\n"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		logs := fstest.MapFS{"a.jsonl": {Data: a}, "b.jsonl": {Data: b}}
		text := make(corpus.IDs, 9)
		for _, tokens := range []corpus.Tokens{nil, text} {
			report, err := Prove(t.Context(), logs, tokens, nil)
			if err == nil && len(report.Findings) > maxFindings {
				t.Errorf("%d findings", len(report.Findings))
			}
		}
	})
}
