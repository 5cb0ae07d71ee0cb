package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"rondo/bench/busbw"
)

// TestMain is also the program of a rank, which `rondo bench allreduce` starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "bench" && os.Args[2] == allReduceRank {
		main()
	}
	os.Exit(m.Run())
}

func TestBenchAllReduce(t *testing.T) {
	wires := busbw.Wires()
	for i, link := range busbw.Links() {
		wire := wires[i%len(wires)]
		line := "allreduce --world 2 --sizes 64,1024 --seconds 0.01 --link " + link +
			" --wire " + wire
		code, out, complaint := runBench(t.Context(), line+" --json")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if code != 0 || complaint != "" || len(lines) != 2 {
			t.Fatalf("%s: %d, %s\n%s", line, code, complaint, out)
		}
		for i, bytes := range []int{64, 1024} {
			var r busbw.Row
			err := json.Unmarshal([]byte(lines[i]), &r)
			if err != nil || r.Link != link || r.Wire != wire || r.World != 2 ||
				r.Bytes != bytes || r.MS <= 0 ||
				r.P99MS < r.MS || r.BusBW <= 0 || r.OfRaw <= 0 || r.OfLoopback <= 0 {
				t.Errorf("%s: %v, %+v", line, err, r)
			}
		}
		if link != "tcp" && link != "tls" {
			continue // the other tables are tcp's
		}
		code, out, complaint = runBench(t.Context(), line)
		lines = strings.Split(strings.TrimSpace(out), "\n")
		rows := len(lines)
		lines = slices.DeleteFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, "AES-128-GCM: ")
		})
		if ciphers := rows - len(lines); (ciphers == 2) != (link == "tls") {
			t.Errorf("%s: %d lines about the cipher\n%s", line, ciphers, out)
		}
		if code != 0 || len(lines) != 3 || len(lines[0]) != len(lines[1]) || len(lines[0]) > 100 {
			t.Errorf("%s: %d, %s\n%s", line, code, complaint, out)
		}
	}
}

// --reduce canonical has the sums of both kinds side by side.
func TestBenchAllReduceCanonical(t *testing.T) {
	const line = "allreduce --world 3 --sizes 64,1024 --seconds 0.01 --link memory " +
		"--reduce canonical"
	code, out, complaint := runBench(t.Context(), line+" --json")
	var r busbw.Row
	err := json.NewDecoder(strings.NewReader(out)).Decode(&r)
	if code != 0 || complaint != "" || err != nil || r.MS <= 0 || r.TreeP99MS < r.TreeMS ||
		r.OfRing != r.TreeMS/r.MS || r.OfRing <= 0 {
		t.Errorf("%d, %s, %v, %+v", code, complaint, err, r)
	}
	code, out, complaint = runBench(t.Context(), line)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 3 || len(lines[0]) != len(lines[1]) ||
		!strings.Contains(lines[0], "canonical ms") {
		t.Errorf("%d, %s\n%s", code, complaint, out)
	}
}

func TestBenchAllReduceUsage(t *testing.T) {
	for flags, want := range map[string]string{
		"--link ipx":                     `--link "ipx": must be tcp or unix or shm or tls or`,
		"--wire fp64":                    `--wire "fp64": must be fp32 or bf16 or fp16`,
		"--reduce tree":                  `--reduce "tree": must be ring or canonical`,
		"--world 1":                      "--world 1: must be 2 to",
		"--sizes 6":                      "--sizes 6: must be a multiple of 4",
		"--sizes big":                    "--sizes",
		"--seconds 0":                    "--seconds 0: must be more than 0",
		"--seconds 1e300":                "--seconds 1e+300: must be more than 0",
		"more":                           "more",
		"--reduce canonical --wire bf16": "--wire bf16: must be fp32 with --reduce canonical",
		"--reduce canonical --world 9":   "--world 9: must be 2 to 8 with --reduce canonical",
	} {
		code, out, complaint := runBench(t.Context(), "allreduce "+flags)
		if code != 2 || out != "" || !strings.Contains(complaint, want) ||
			strings.Count(complaint, "\n") != 1 {
			t.Errorf("%s: %d, %q", flags, code, complaint)
		}
	}
}
