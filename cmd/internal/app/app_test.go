package app

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/spf13/cobra"

	"rondo/internal/jobspec"
)

func tree(run func() error) *cobra.Command {
	root := &cobra.Command{Use: "rondo"}
	train := &cobra.Command{Use: "train", RunE: func(*cobra.Command, []string) error {
		return run()
	}}
	jobspec.AddFlags(train.Flags())
	root.AddCommand(train)
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
			"one of rnn, rnn-relu, gru, gru-reset-before, lstm\n"},
		{[]string{"train", "--bogus"}, none, 2,
			"rondo train: unknown flag: --bogus (see `rondo train --help`)\n"},
		{[]string{"train", "extra"}, none, 2,
			"rondo train: unexpected argument \"extra\" (see `rondo train --help`)\n"},
		{[]string{"trian"}, none, 2,
			"rondo: unknown command \"trian\", did you mean train? (see `rondo --help`)\n"},
		{[]string{"train"}, func() error { return errors.New("two\nlines") }, 1,
			"rondo train: two lines\n"},
		{[]string{"train"}, func() error { return Usagef("corpus x: not found") }, 2,
			"rondo train: corpus x: not found\n"},
	} {
		var stderr bytes.Buffer
		code := Run(context.Background(), tree(c.run), c.args, &stderr)
		if code != c.code || stderr.String() != c.line {
			t.Errorf("%v: exit %d, %q; want %d, %q", c.args, code, stderr.String(), c.code, c.line)
		}
	}
}
