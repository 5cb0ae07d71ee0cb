package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/k8s/kube"
)

func portForwardCommand() *cobra.Command {
	var job string
	c := &cobra.Command{
		Use:   "port-forward",
		Short: "Open the web page of a job on Kubernetes on this machine",
		Long: "Forwards a port of this machine to the observer beside the job's leading\n" +
			"coordinator, and to another one when that pod goes, until Ctrl-C: the page at /,\n" +
			"its state at /api/state, and the figures for Prometheus at /metrics.",
	}
	jobName(c, &job)
	port := c.Flags().Int("port", 8080, "of this machine, on its loopback; 0: any")
	connect := kube.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if *port < 0 || *port > 65535 {
			return app.Usagef("--port %d is not 0 to 65535", *port)
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		forward, err := cluster.Forward(cmd.Context(), job, *port, func(text string) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), text)
		})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), forward.URL()); err != nil {
			return err
		}
		err = forward.Run(cmd.Context())
		if errors.Is(err, context.Canceled) {
			return nil // a person has seen enough
		}
		return err
	}
	return c
}
