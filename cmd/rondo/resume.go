package main

import (
	"github.com/spf13/cobra"

	"rondo/k8s/kube"
)

func resumeJobCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "resume",
		Short: "Resume a job on Kubernetes that was stopped, has ended or is suspended",
		Long: "Resume runs a job again with the options of its submission, from its newest\n" +
			"checkpoint. Flags change these options: --steps 2000 trains further,\n" +
			"--workers 8 with more workers; all others stay as submitted. A suspended job\n" +
			"goes on without changes.",
		Example: "  rondo resume --job song --steps 20000",
	}
	connect := kube.AddFlags(c)
	flags := kube.AddSubmissionFlags(c.Flags())
	flags.WithoutDefaults()
	groupFlags(c)
	how := runFlags(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		job := c.Flags().Lookup("job").Value.String()
		if err := kube.CheckName(job); err != nil {
			return err
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		return cluster.Resume(cmd.Context(), job, flags, *how, cmd.OutOrStdout(),
			cmd.ErrOrStderr())
	}
	return c
}
