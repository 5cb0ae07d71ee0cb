package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rondo/internal/app"
	"rondo/k8s/kube"
)

// defaultFirstStep bounds the wait for the first step. It includes the start of new nodes.
const defaultFirstStep = 10 * time.Minute

func submitCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "submit",
		Short: "Run a job on Kubernetes",
		Long: "Submit applies a job's objects to a Kubernetes cluster: a coordinator, the\n" +
			"workers, and for the first job of a namespace an etcd; with --ha or eight workers\n" +
			"two coordinators and an etcd of three members. It reports progress until the\n" +
			"first step; the job then goes on by itself.\n\n" +
			"--corpus may be a small file of this machine, which travels with the job. Larger\n" +
			"texts and checkpoints lie in a volume (pvc://CLAIM/PATH) or a bucket\n" +
			"(s3://BUCKET/PATH). --dry-run prints the objects and asks no cluster.",
		Example: "  rondo submit --workers 4 --checkpoint-dir s3://models/song --corpus a.txt\n" +
			"  rondo submit --config job.yaml --gpus-per-worker 1 --image registry/rondo:cuda\n" +
			"  rondo submit --config job.yaml --dry-run | less",
	}
	flags := c.Flags()
	connect := kube.AddFlags(c)
	said := kube.AddSubmissionFlags(flags)
	groupFlags(c)
	how := runFlags(flags)
	var dryRun string
	flags.BoolVar(&how.CreateNamespace, "create-namespace", false, "create the namespace if it is "+
		"missing")
	flags.StringVar(&dryRun, "dry-run", "none", "client: print the objects; server: let the "+
		"cluster check them, and keep nothing")
	flags.Lookup("dry-run").NoOptDefVal = "client"
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		submission, err := said.Submission(nil)
		if err != nil {
			return err
		}
		out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
		cluster, err := connect()
		switch dryRun {
		case "client":
			namespace := "default"
			if cluster != nil {
				namespace = cluster.Namespace
			} else if given := flags.Lookup("namespace").Value.String(); given != "" {
				namespace = given
			}
			var wrong *app.UsageError
			if errors.As(err, &wrong) {
				return err
			}
			if err := submission.CheckKept(); err != nil {
				return err
			}
			return kube.Print(cmd.Context(), submission, namespace, out, notes)
		case "none", "server":
		default:
			return app.Usagef("--dry-run %q is not one of none, client, server", dryRun)
		}
		if err == nil {
			err = submission.CheckKept()
		}
		if err != nil {
			return err
		}
		how.ServerDryRun = dryRun == "server"
		return cluster.Submit(cmd.Context(), submission, *how, out, notes)
	}
	return c
}

// runFlags defines the flags for the wait after a run's start.
func runFlags(flags *pflag.FlagSet) *kube.Run {
	how := &kube.Run{}
	flags.BoolVar(&how.Wait, "wait", true, "report progress until the first step is done; "+
		"--wait=false: return when the job is applied")
	flags.DurationVar(&how.Timeout, "timeout", defaultFirstStep, "how long to wait for the first "+
		"step")
	return how
}
