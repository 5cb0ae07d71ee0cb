package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rondo/checkpoint"
	"rondo/internal/app"
	"rondo/k8s/kube"
)

// pullTimeout bounds the start of the pod that reads a claim. It includes the start of a node.
const pullTimeout = 10 * time.Minute

func checkpointPullCommand() *cobra.Command {
	how := kube.Pull{Timeout: pullTimeout}
	c := &cobra.Command{
		Use:   "pull [pvc://CLAIM/PATH] FOLDER",
		Short: "Copy a checkpoint from a volume claim of Kubernetes to this machine",
		Long: "Pull starts a pod that mounts the claim, copies one checkpoint to a folder in\n" +
			"FOLDER, compares it with its manifest, and deletes the pod. The job may run, or\n" +
			"be gone: its record says where its checkpoints are.",
		Example: "  rondo checkpoint pull --job song models\n" +
			"  rondo checkpoint pull pvc://models/song --step 400 models",
		Args: cobra.RangeArgs(1, 2),
	}
	connect := kube.AddFlags(c)
	flags := c.Flags()
	flags.StringVar(&how.Job, "job", "", "name of the job whose checkpoint it is")
	flags.Int64Var(&how.Step, "step", 0, "step of the checkpoint; default: the newest")
	flags.BoolVar(&how.Best, "best", false, "the one with the lowest validation loss")
	flags.StringVar(&how.Image, "image", "", "[REGISTRY/]NAME[:TAG] of the pod; default: that of "+
		"the job")
	flags.DurationVar(&how.Timeout, "timeout", pullTimeout, "how long to wait until the pod runs")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 {
			how.From = args[0]
		}
		switch {
		case (how.Job == "") == (how.From == ""):
			return app.Usagef("give either --job or pvc://CLAIM/PATH, and the folder for it")
		case how.Step < 0:
			return app.Usagef("--step %d is below 0", how.Step)
		case how.Step > 0 && how.Best:
			return app.Usagef("--step and --best: leave out one of the two")
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		step, path, err := pullTo(cmd.Context(), cluster, how, args[len(args)-1])
		if err == nil {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "checkpoint of step %d: %s\n", step, path)
		}
		return err
	}
	return c
}

// pullTo copies a checkpoint from a claim to a folder in dir.
func pullTo(
	ctx context.Context, cluster *kube.Cluster, how kube.Pull, dir string,
) (step int64, path string, err error) {
	err = how.Run(ctx, cluster, func(r io.Reader) error {
		manifest, to, err := checkpoint.Receive(ctx, r, dir)
		if err == nil {
			step, path = manifest.Step, to
		}
		return err
	})
	return step, path, err
}

// fromClaim replaces a location in a claim, pvc://CLAIM/PATH, by a copy on this machine of the best
// checkpoint there, which is deleted when the command ends.
func fromClaim(cmd *cobra.Command, location *string) error {
	if !strings.HasPrefix(*location, "pvc://") {
		return nil
	}
	if cmd.Flags().Lookup("kubeconfig") == nil {
		return app.Usagef("%s is in a claim: rondo checkpoint pull %[1]s FOLDER copies it to this "+
			"machine", *location)
	}
	cluster, err := kube.Connect(cmd.Flags())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rondo-model-")
	if err != nil {
		return err
	}
	cobra.OnFinalize(func() { _ = os.RemoveAll(dir) })
	how := kube.Pull{From: *location, Best: true, Timeout: pullTimeout}
	step, path, err := pullTo(cmd.Context(), cluster, how, dir)
	if err != nil {
		return err
	}
	cmd.PrintErrf("step %d of %s\n", step, *location)
	*location = path
	return nil
}

// checkpointSendCommand is what runs in the pod of pull.
func checkpointSendCommand() *cobra.Command {
	var step int64
	var best, hold bool
	c := &cobra.Command{
		Use:    "send FOLDER",
		Short:  "Write a checkpoint to standard output, for pull",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
	}
	flags := c.Flags()
	flags.Int64Var(&step, "step", 0, "step of the checkpoint; default: the newest")
	flags.BoolVar(&best, "best", false, "the one with the lowest validation loss")
	flags.BoolVar(&hold, "hold", false, "write nothing, and wait for a signal")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if hold {
			<-ctx.Done()
			return nil
		}
		store, found, err := openSent(ctx, args[0], step, best)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		return found.Send(ctx, cmd.OutOrStdout())
	}
	return c
}

// openSent opens the checkpoint to send.
func openSent(ctx context.Context, location string, step int64, best bool) (
	store *checkpoint.Store, found *checkpoint.Checkpoint, err error) {
	switch {
	case best:
		store, found, _, err = checkpoint.ResolveBest(ctx, location, checkpoint.Config{})
	case step == 0:
		store, found, err = checkpoint.Resolve(ctx, location, checkpoint.Config{})
	default:
		if store, err = checkpoint.Open(ctx, location, checkpoint.Config{}); err == nil {
			found, err = store.Load(ctx, step)
		}
	}
	return store, found, err
}
