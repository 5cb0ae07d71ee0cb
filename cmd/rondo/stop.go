package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/k8s/kube"
)

func stopCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "stop",
		Short: "Stop a running job at a step's end, with a checkpoint",
		Long: "Asks all workers of a job to stop after the same step and to save a checkpoint.\n" +
			"In Kubernetes (without --etcd) it waits for the end and prints the checkpoint's\n" +
			"place; rondo resume goes on from there. With --etcd, the same `rondo train`\n" +
			"command goes on.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 0 {
				return app.Usagef("%q is not a flag (see `%s --help`)", args[0], cmd.CommandPath())
			}
			return nil
		},
	}
	named := jobFlags(c)
	timeout := c.Flags().Duration("timeout", 10*time.Minute, "in Kubernetes: how long the step "+
		"and the last checkpoint may take")
	force := c.Flags().Bool("force", false, "stop a job that has no --checkpoint-dir: its model "+
		"is lost")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if named.inCluster() {
			there, err := named.cluster()
			if err != nil {
				return err
			}
			return there.Stop(cmd.Context(), named.cfg.Job, kube.Stop{
				Timeout: *timeout, Force: *force, Say: saying(cmd)})
		}
		return named.look(cmd.Context(), func(cfg meet.Config, registry cluster.Registry,
			view cluster.View) error {
			if view.Plan.Phase == cluster.Ended {
				return fmt.Errorf("job %s has ended: %s", cfg.Job, view.Plan.Reason)
			}
			spec, err := meet.Decode(view.Spec)
			if err != nil {
				return err
			}
			if err := kube.Stoppable(spec, view.Plan.Phase == cluster.Forming, *force); err != nil {
				return err
			}
			client, err := cfg.Client(registry, 0)
			if err != nil {
				return err
			}
			if err := client.Stop(cmd.Context(), "rondo stop"); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "job %s stops at the end of its step\n",
				cfg.Job)
			return err
		})
	}
	return c
}
