package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"rondo/cluster"
	"rondo/cluster/rpc"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/meet"
)

// jobFlags defines the flags that name a running job. The returned function calls look with the
// job's part of etcd, and with what is in it.
func jobFlags(c *cobra.Command) func(context.Context, lookFunc) error {
	var cfg meet.Config
	c.Flags().StringSliceVar(&cfg.Etcd, "etcd", nil, "host:port,... of etcd")
	c.Flags().StringVar(&cfg.Job, "job", "", "name of the job")
	app.Require(c, "etcd", "job")
	return func(ctx context.Context, look lookFunc) error {
		if err := cfg.Validate(); err != nil {
			return app.Usage(err)
		}
		store, err := cfg.Store(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		view, err := store.View(ctx)
		if errors.Is(err, cluster.ErrNoSpec) {
			return app.Usagef("--job %s: this etcd has no job of that name", cfg.Job)
		}
		if err != nil {
			return err
		}
		return look(cfg, store, view)
	}
}

type lookFunc func(cfg meet.Config, registry cluster.Registry, view cluster.View) error

func scaleCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "scale N",
		Short: "Set how many workers a running job has at most",
		Long: "Sets how many workers a running job has at most. With fewer than it has, some\n" +
			"become spares at the end of the step; with more, spares and workers that appear\n" +
			"are taken in. N can be --min-workers to --batch.\n\n" +
			"Where rondo train runs all workers of the job on its machine, it starts the\n" +
			"processes that a larger N needs there. Elsewhere (rondo train --local-workers,\n" +
			"bin/worker) no process is started: whoever runs the workers starts more, and N\n" +
			"says how many of them are taken in. None is ended by a smaller N.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usagef("%d arguments; give the number of workers (see `%s --help`)",
					len(args), cmd.CommandPath())
			}
			return nil
		},
	}
	look := jobFlags(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		workers, err := strconv.Atoi(args[0])
		if err != nil {
			return app.Usagef("%q is not a number of workers (see `%s --help`)", args[0],
				cmd.CommandPath())
		}
		return look(cmd.Context(), func(cfg meet.Config, registry cluster.Registry,
			view cluster.View) error {
			if err := scale(cmd.Context(), cfg, registry, view, workers); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "job %s: the ring has at most %d from now "+
				"on; registered workers: %d\n", cfg.Job, workers, len(view.Members))
			return err
		})
	}
	return c
}

// scale asks the job's leader.
func scale(ctx context.Context, cfg meet.Config, registry cluster.Registry, view cluster.View,
	workers int) error {
	if view.Plan.Phase == cluster.Ended {
		return fmt.Errorf("job %s has ended: %s", cfg.Job, view.Plan.Reason)
	}
	client, err := cfg.Client(registry, 0)
	if err != nil {
		return err
	}
	err = client.Scale(ctx, workers)
	var refused *rpc.RefusedError
	if errors.As(err, &refused) && refused.Wrong() {
		return app.Usage(err)
	}
	return err
}
