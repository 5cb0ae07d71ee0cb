package worker

import (
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
)

// Command is `worker --etcd … --job …`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "worker",
		Version: meet.Version(),
		Short:   "Train lanes of a job on this machine; everything else comes from etcd",
	}
	config := meet.AddFlags(c)
	supervised := c.Flags().Bool("supervised", false,
		"end with whoever holds standard input, and let the coordinator say why a job failed")
	device := c.Flags().String("device", "", "where this worker computes, such as cuda:1; "+
		"default: what the job says")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if *supervised {
			go endWith(cmd.InOrStdin())
		}
		least := slog.LevelInfo
		if *supervised { // the supervisor shows what happens
			least = slog.LevelWarn
		}
		where, err := config(least)
		if err != nil {
			return err
		}
		did, err := Run(cmd.Context(), Config{Config: where, Device: *device})
		var heard *heardError
		if *supervised && errors.As(err, &heard) {
			return &app.ToldError{Err: err}
		}
		if err == nil {
			where.Log.Info(did)
			app.Summarize(cmd, did)
		}
		return err
	}
	return c
}

// endWith ends the process when its supervisor is gone: it must not train on beside a job that was
// started anew.
func endWith(supervisor io.Reader) {
	_, _ = io.Copy(io.Discard, supervisor)
	os.Exit(1)
}
