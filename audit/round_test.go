package audit

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"rondo/corpus"
)

// rounds returns the logs of two workers in rounds of four steps: two complete rounds and a third
// that breaks off. The third is repeated as the job's last round, which ends early after step 10.
// segments is the number of segments per lane and step.
func rounds(t *testing.T, segments int) fstest.MapFS {
	t.Helper()
	batches := corpus.SamplerConfig{Tokens: 1000, Lanes: 4, BPTT: 5, Seed: 1,
		Sampling: corpus.Sequential}
	sampler, err := corpus.NewSampler(batches)
	check(t, err)
	dir, logs := t.TempDir(), fstest.MapFS{}
	for rank, name := range []string{"a", "b"} {
		log, err := Open(dir, name, sampler.Offset)
		check(t, err)
		ring := func(generation uint64, from, to, commits int64) {
			check(t, log.Ring(Ring{Run: 1, Generation: generation, From: from,
				World: 2, Rank: rank, Accumulate: segments, Batches: batches,
				SyncEvery: 4}))
			for step := from + 1; step <= to; step++ {
				for segment := range segments {
					check(t, log.Intend(step, segment, 2*rank, 2, make([]int32, 2*5)))
				}
				if step <= commits && (step%4 == 0 || step == commits) {
					check(t, log.Commit(Commit{Step: step}))
				}
			}
		}
		ring(1, 0, 10, 8)
		ring(2, 8, 10, 10)
		check(t, log.Close())
		text, err := os.ReadFile(dir + "/" + name + extension)
		check(t, err)
		logs[name+extension] = &fstest.MapFile{Data: text}
	}
	return logs
}

// without removes the lines of a log that begin with the given text.
func without(logs fstest.MapFS, name, begin string) fstest.MapFS {
	left := maps.Clone(logs)
	left[name] = &fstest.MapFile{Data: bytes.Join(slices.DeleteFunc(
		bytes.SplitAfter(logs[name].Data, []byte("\n")), func(line []byte) bool {
			return bytes.HasPrefix(line, []byte(begin))
		}), nil)}
	return left
}

// TestRounds: a commit covers all steps of its round and no others.
func TestRounds(t *testing.T) {
	for segments := 1; segments <= 3; segments++ {
		report := prove(t, rounds(t, segments), nil)
		if !report.Sound() || report.First != 1 || report.Last != 10 ||
			report.Segments != 40*int64(segments) || report.Repeated != 2 {
			t.Errorf("%+v", report)
		}
	}
	logs := rounds(t, 1)
	commit := `{"commit":{"generation":1,"step":8,`
	for want, damaged := range map[string]fstest.MapFS{
		"step 6 of generation 1: lanes 2 to 3 were skipped": without(logs, "b.jsonl",
			`{"read":{"generation":1,"step":6,`),
		"b read it without having committed step 4": without(logs, "b.jsonl",
			`{"commit":{"generation":1,"step":4,`),
		"no ring in the logs committed step 8": without(without(logs, "a.jsonl", commit),
			"b.jsonl", commit),
	} {
		found := strings.Join(prove(t, damaged, nil).Findings, "\n")
		if !strings.Contains(found, want) {
			t.Errorf("%q; want %q", found, want)
		}
	}
	each := fstest.MapFS{}
	for name, file := range logs {
		each[name] = &fstest.MapFile{Data: bytes.ReplaceAll(file.Data, []byte(`,"sync_every":4`),
			nil)}
	}
	if report := prove(t, each, nil); report.Sound() {
		t.Error("steps that nobody has committed count in a job without rounds")
	}
}
