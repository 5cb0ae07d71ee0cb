//go:build !wasm

package worker

import (
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/job/jobspec"
)

// Command returns the command `worker --etcd … --job …`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "worker",
		Version: meet.Version(),
		Short:   "Train lanes of a job on this machine; everything else comes from etcd",
	}
	config := meet.AddFlags(c)
	supervised := c.Flags().Bool("supervised", false,
		"end when standard input closes; leave it to the coordinator to report why the job failed")
	device := c.Flags().String("device", "", "this worker's device, for example cuda:1; "+
		"default: the job's")
	var allow jobspec.Allow
	allow.AddFlags(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if *supervised {
			go endWith(cmd.InOrStdin())
		}
		least := slog.LevelInfo
		if *supervised { // the supervisor shows the events
			least = slog.LevelWarn
		}
		where, err := config(least)
		if err != nil {
			return err
		}
		did, err := Run(cmd.Context(), Config{Config: where, Device: *device, Allow: allow})
		var reported *reportedError
		if *supervised && errors.As(err, &reported) {
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

// endWith ends the process when its supervisor has gone. It must not train beside a job that was
// started anew.
func endWith(supervisor io.Reader) {
	_, _ = io.Copy(io.Discard, supervisor)
	os.Exit(1)
}
