package main

import (
	"time"

	"github.com/spf13/cobra"

	"rondo/k8s/kube"
)

func deleteCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "delete",
		Short: "Remove a job from Kubernetes; its checkpoints stay",
		Long: "Delete removes a job's objects from the cluster, and its keys from etcd.\n" +
			"Checkpoints, volume claims and secrets stay. A job that has not ended is\n" +
			"refused: rondo stop saves it first, --force deletes it without a save. The\n" +
			"namespace's etcd goes with its last job; --with-etcd waits for that, and removes\n" +
			"also one that no job owns.",
		Example: "  rondo delete --job song\n  rondo delete --job song --with-etcd",
	}
	connect := kube.AddFlags(c)
	how := kube.Delete{}
	var job string
	jobName(c, &job)
	flags := c.Flags()
	flags.BoolVar(&how.Force, "force", false, "delete a job that has not ended")
	flags.BoolVar(&how.WithEtcd, "with-etcd", false, "also remove the namespace's etcd with its "+
		"data, if there is no other job")
	flags.DurationVar(&how.Timeout, "timeout", 5*time.Minute, "how long to wait until all objects "+
		"are gone")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := kube.CheckName(job); err != nil {
			return err
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		how.Say = saying(cmd)
		return cluster.Delete(cmd.Context(), job, how)
	}
	return c
}
