package coordinator

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"rondo/cmd/internal/meet"
)

// Command is `coordinator --etcd … --job …`.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "coordinator",
		Version: meet.Version(),
		Short:   "Lead a job, or stand by for its leader",
	}
	config := meet.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		err := Run(cmd.Context(), config())
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			return nil // it was asked to go, and has given the leadership up
		}
		return err
	}
	return c
}
