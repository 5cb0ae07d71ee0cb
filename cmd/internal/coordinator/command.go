package coordinator

import (
	"github.com/spf13/cobra"

	"rondo/cmd/internal/meet"
)

// Command is `coordinator --etcd … --job …`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "coordinator",
		Short: "Lead a job, or stand by for its leader",
	}
	config := meet.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return Run(cmd.Context(), config()) }
	return c
}
