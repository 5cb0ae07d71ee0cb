package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"rondo/job/jobspec"
)

func tree(run func() error) *cobra.Command {
	root := &cobra.Command{Use: "rondo"}
	train := &cobra.Command{Use: "train", RunE: func(*cobra.Command, []string) error {
		return run()
	}}
	jobspec.AddFlags(train.Flags())
	train.Flags().Duration("time", 0, "")
	train.Flags().Int("restarts", 0, "")
	root.AddCommand(train, &cobra.Command{Use: "recipes", Args: cobra.MaximumNArgs(1),
		RunE: func(*cobra.Command, []string) error { return run() }})
	return root
}

func TestExitCodesAndLines(t *testing.T) {
	none := func() error { return nil }
	for _, c := range []struct {
		args []string
		run  func() error
		code int
		line string
	}{
		{[]string{"train"}, none, 0, ""},
		{[]string{"train", "--cell", "lstmx"}, none, 2, "rondo train: --cell \"lstmx\" is not " +
			"one of rnn, rnn-relu, gru, gru-reset-before, lstm, lstm-peephole, mgu, " +
			"lstm-coupled, lstm-no-forget, leaky-learned, leaky, min-gru, clockwork\n"},
		{[]string{"train", "--bogus"}, none, 2,
			"rondo train: unknown flag: --bogus (see `rondo train --help`)\n"},
		{[]string{"train", "--hiden=5"}, none, 2, "rondo train: unknown flag: --hiden, " +
			"did you mean --hidden? (see `rondo train --help`)\n"},
		{[]string{"train", "--batch-size=5"}, none, 2, "rondo train: unknown flag: --batch-size, " +
			"did you mean --batch? (see `rondo train --help`)\n"},
		{[]string{"train", "--num-layers=5"}, none, 2, "rondo train: unknown flag: --num-layers, " +
			"did you mean --layers? (see `rondo train --help`)\n"},
		{[]string{"train", "--learning-rate=1"}, none, 2, "rondo train: unknown flag: " +
			"--learning-rate, did you mean --lr? (see `rondo train --help`)\n"},
		{[]string{"train", "--skip=5"}, none, 2, "rondo train: unknown flag: --skip, did you " +
			"mean --skip-connections or --skip-through-time? (see `rondo train --help`)\n"},
		{[]string{"train", "--time", "20"}, none, 2,
			"rondo train: --time \"20\" is not a duration such as 10s or 5m\n"},
		{[]string{"train", "--restarts=few"}, none, 2,
			"rondo train: --restarts \"few\" is not a whole number\n"},
		{[]string{"recipes", "a", "b"}, none, 2, "rondo recipes: accepts at most 1 arg(s), " +
			"received 2 (see `rondo recipes --help`)\n"},
		{[]string{"train", "extra"}, none, 2,
			"rondo train: unexpected argument \"extra\" (see `rondo train --help`)\n"},
		{[]string{"trian"}, none, 2,
			"rondo: unknown command \"trian\", did you mean train? (see `rondo --help`)\n"},
		{[]string{"train"}, func() error { return errors.New("two\nlines") }, 1,
			"rondo train: two lines\n"},
		{[]string{"train"}, func() error { return Usagef("corpus x: not found") }, 2,
			"rondo train: corpus x: not found\n"},
		{[]string{"train"}, func() error { return &JobError{errors.New("NaN")} }, 3,
			"rondo train: NaN\n"},
		{[]string{"train"}, func() error { return &JobError{Usagef("corpus x: not found")} }, 2,
			"rondo train: corpus x: not found\n"},
		{[]string{"train"}, func() error { return &LeftError{"asked to go"} }, 4,
			"rondo train: asked to go\n"},
	} {
		var stderr bytes.Buffer
		code := Run(context.Background(), tree(c.run), c.args, &stderr)
		if code != c.code || stderr.String() != c.line {
			t.Errorf("%v: exit %d, %q; want %d, %q", c.args, code, stderr.String(), c.code, c.line)
		}
	}
}

func TestLastWord(t *testing.T) {
	long := strings.Repeat("é", 3000)
	for _, c := range []struct {
		name string
		run  func(*cobra.Command) error
		want string // a regular expression for the file's content
	}{
		{"nothing to say", func(*cobra.Command) error { return nil }, "^before$"},
		{"done", func(c *cobra.Command) error {
			Summarize(c, "done after step 7")
			return nil
		}, `^done after step 7; peak memory [1-9]\d* MiB\n$`},
		{"failed", func(*cobra.Command) error { return errors.New("two\nlines") },
			"^worker: two lines\n$"},
		{"failed after it was summed up", func(c *cobra.Command) error {
			Summarize(c, "done")
			return errors.New("but not closed")
		}, "^worker: but not closed\n$"},
		{"told elsewhere", func(*cobra.Command) error {
			return &ToldError{errors.New("no memory")}
		}, "^worker: no memory\n$"},
		{"long", func(*cobra.Command) error { return errors.New(long) }, "^worker: é+\n$"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "termination-log")
			if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv(LastWordVariable, path)
			command := &cobra.Command{Use: "worker"}
			command.RunE = func(cmd *cobra.Command, _ []string) error { return c.run(cmd) }
			Run(context.Background(), command, nil, io.Discard)
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(c.want).Match(got) || len(got) > 4096 {
				t.Errorf("%q does not match %s", got, c.want)
			}
		})
	}
}

func TestLastWordThatCannotBeWritten(t *testing.T) {
	t.Setenv(LastWordVariable, filepath.Join(t.TempDir(), "no", "such", "folder"))
	command := &cobra.Command{Use: "worker", RunE: func(*cobra.Command, []string) error {
		return &JobError{errors.New("NaN")}
	}}
	var stderr bytes.Buffer
	if code := Run(context.Background(), command, nil, &stderr); code != ExitJob {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(stderr.String(), LastWordVariable) {
		t.Errorf("standard error does not name the variable: %s", &stderr)
	}
}
