package worker

import (
	"errors"

	"github.com/spf13/cobra"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/meet"
)

// Command is `worker --etcd … --job …`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "worker",
		Short: "Train lanes of a job on this machine; everything else comes from etcd",
	}
	config := meet.AddFlags(c)
	supervised := c.Flags().Bool("supervised", false,
		"leave it to the coordinator to say why the job failed")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		err := Run(cmd.Context(), config())
		var heard *heardError
		if *supervised && errors.As(err, &heard) {
			return &app.ToldError{Err: err}
		}
		return err
	}
	return c
}
