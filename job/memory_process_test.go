package job_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/local"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/worker"
)

// peakVariable names the folder to which the test's own binary, run as a worker, writes its peak.
const peakVariable = "RONDO_TEST_PEAK"

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "worker" {
		os.Exit(m.Run())
	}
	root := &cobra.Command{Use: "rondo"}
	root.AddCommand(worker.Command())
	code := app.Main(root)
	path := filepath.Join(os.Getenv(peakVariable), strconv.Itoa(os.Getpid()))
	status, err := os.ReadFile("/proc/self/status")
	if err == nil {
		err = os.WriteFile(path, status, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// peaks are the most that each worker held, in bytes.
func peaks(t *testing.T, folder string) (all []int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "VmHWM:")
		var kib int64
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all = append(all, kib<<10)
	}
	return all
}

// manyWords is a text with so many different words.
func manyWords(t *testing.T, n int) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "w%d ", i)
	}
	path := filepath.Join(t.TempDir(), "words.txt")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// manyRows is a time series of 8 columns with so many rows.
func manyRows(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.csv")
	rows := strings.Repeat("1,2,3,4,5,6,7,8\n8,7,6,5,4,3,2,1\n", n/2)
	if err := os.WriteFile(path, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// manyLengths returns a file of texts of up to 180 words, and something before each.
func manyLengths(t *testing.T, before string) string {
	t.Helper()
	path, text := filepath.Join(t.TempDir(), "texts.tsv"), ""
	for i := range 400 {
		first := before + strings.Repeat("x", i%2) // a second label
		text += first + "\t" + strings.Repeat("a b c ", 1+i%60) + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMemoryAgainstWorkers holds the estimate against the peak of real worker processes: never
// less, and at most half as much again and 64 MiB more. With -short it tries half of the jobs.
func TestMemoryAgainstWorkers(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("this system does not tell a process's peak memory")
	}
	if raced {
		t.Skip("the race detector's own memory would be counted: run it without -race")
	}
	for name, change := range map[string]func(*rondov1.JobSpec){
		"small": func(s *rondov1.JobSpec) { s.Steps = 30 },
		"wide":  func(s *rondov1.JobSpec) { s.Hidden, s.Layers, s.Steps = 1024, 2, 3 },
		"wide bf16": func(s *rondov1.JobSpec) {
			s.Hidden, s.Layers, s.Steps, s.Precision = 1024, 2, 3, "bf16"
		},
		"large vocabulary": func(s *rondov1.JobSpec) {
			s.Corpus, s.Tokenizer = manyWords(t, 60000), "word"
			s.Embed, s.Hidden, s.Steps = 128, 128, 3
		},
		"long":      func(s *rondov1.JobSpec) { s.Bptt, s.Steps = 1500, 3 },
		"recompute": func(s *rondov1.JobSpec) { s.Bptt, s.Recompute, s.Steps = 1500, 100, 3 },
		"series": func(s *rondov1.JobSpec) {
			s.Task, s.Corpus, s.Steps, s.Clip = "regress", manyRows(t, 1<<20), 3, 1
			s.SampleTokens = jobspec.Default().SampleTokens // samples are of texts
		},
		"texts of many lengths": func(s *rondov1.JobSpec) {
			s.Task, s.Corpus, s.Bidirectional = "classify", manyLengths(t, "a"), true
			s.Tokenizer, s.Embed, s.Hidden, s.MaxLength, s.Steps = "word", 64, 128, 4096, 24
			s.SampleTokens = jobspec.Default().SampleTokens
		},
		"pairs of many lengths": func(s *rondov1.JobSpec) {
			s.Task, s.Corpus, s.Attention = "translate", manyLengths(t, "a b c"), "luong"
			s.Tokenizer, s.Embed, s.Hidden, s.MaxLength, s.Steps = "word", 64, 128, 4096, 24
			s.SampleTokens = jobspec.Default().SampleTokens
		},
		"adam, saved": func(s *rondov1.JobSpec) {
			s.Hidden, s.Optimizer, s.Lr, s.Steps = 800, "adam", 0.001, 8
			s.CheckpointDir, s.CheckpointEvery = t.TempDir(), 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && slices.Contains([]string{"wide", "long", "recompute",
				"large vocabulary", "texts of many lengths"}, name) {
				t.Skip("a job like it is tried with -short; `make race` has all")
			}
			spec := jobspec.Textbook()
			spec.Device = "cpu"
			spec.Workers, spec.Threads, spec.SampleTokens = 2, 1, 8
			spec.CheckpointDir = jobspec.NoCheckpoints
			change(spec)
			data, all := train(t, spec)
			estimate, err := job.Memory(spec, data, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, peak := range all {
				t.Logf("estimated %d MiB, peak %d MiB", estimate.Steady()>>20, peak>>20)
				if want := estimate.Steady(); peak > want || want > peak*3/2+64<<20 {
					t.Errorf("%+v", estimate)
				}
			}
			if len(all) != 2 {
				t.Errorf("%d workers told their peak", len(all))
			}
		})
	}
}

// train runs the job on two workers, and returns the extent of its data and their peaks.
func train(t *testing.T, spec *rondov1.JobSpec) (data job.Extent, all []int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	folder := t.TempDir()
	t.Setenv(peakVariable, folder)
	run := local.Run{Spec: spec, LocalWorkers: -1, Log: func(string) {},
		Show: func(context.Context, telemetry.Event) error { return nil }}
	if _, err := run.Train(ctx); err != nil {
		t.Fatal(err)
	}
	data, err := job.Measure(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return data, peaks(t, folder)
}
