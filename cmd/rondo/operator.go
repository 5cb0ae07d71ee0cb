package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/k8s/kube"
	rondov1 "rondo/proto/rondo/v1"
)

func operatorCommand() *cobra.Command {
	cfg := kube.OperatorConfig{Fits: func(spec *rondov1.JobSpec, workers int) error {
		return coordinator.JobOf(spec).CheckScale(workers)
	}}
	var manifest bool
	var pod string
	c := &cobra.Command{
		Use:   "operator",
		Short: "Run the jobs that RondoJobs describe, a custom resource of Kubernetes",
		Long: "Watches the RondoJobs of a namespace, or with --all-namespaces of the cluster,\n" +
			"and does for each what rondo submit and rondo scale do. It writes the job's\n" +
			"progress into the RondoJob's status. Deleting a RondoJob removes all that was\n" +
			"made for it.\n\n" +
			"It runs in the cluster: --manifest prints what installs it.",
		Example: "  rondo operator --manifest --image registry/rondo:0.2.0 -n rondo |\n" +
			"      kubectl apply --server-side -f -",
	}
	flags := c.Flags()
	flags.StringVar(&cfg.Image, "image", "", "image of the operator (--manifest), and of "+
		"RondoJobs without spec.image; default: that of --pod")
	flags.StringVar(&pod, "pod", "", "name of this pod")
	flags.BoolVarP(&cfg.Everywhere, "all-namespaces", "A", false, "RondoJobs of all namespaces")
	flags.BoolVar(&manifest, "manifest", false, "print the objects that install an operator in "+
		"--namespace, and run none")
	log := meet.AddLogFlags(flags)
	connect := kube.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if manifest {
			return printOperator(cmd, cfg)
		}
		var err error
		if cfg.Log, err = log(cmd.ErrOrStderr(), slog.LevelInfo); err != nil {
			return err
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		if cfg.Image == "" && pod != "" {
			if cfg.Image, err = kube.ImageOf(cmd.Context(), cluster, pod); err != nil {
				return err
			}
		}
		return kube.Operate(cmd.Context(), cluster, cfg)
	}
	return c
}

// printOperator prints the objects that install an operator.
func printOperator(cmd *cobra.Command, cfg kube.OperatorConfig) error {
	namespace := cmd.Flag("namespace").Value.String()
	if namespace == "" || cfg.Image == "" {
		return app.Usagef("--manifest needs --namespace, which must exist, and --image, from " +
			"where the cluster's nodes pull it")
	}
	text, err := kube.OperatorManifest(cfg.Image, namespace, cfg.Everywhere)
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}
