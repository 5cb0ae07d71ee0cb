package worker

import (
	"github.com/spf13/cobra"

	"rondo/cmd/internal/meet"
)

// Command is `worker --etcd … --job …`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "worker",
		Short: "Train lanes of a job on this machine; everything else comes from etcd",
	}
	config := meet.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return Run(cmd.Context(), config()) }
	return c
}
