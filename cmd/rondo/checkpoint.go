package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/internal/app"
	"rondo/job"
)

func checkpointCommand() *cobra.Command {
	c := &cobra.Command{Use: "checkpoint",
		Short: "Inspect a folder of checkpoints, or copy one from Kubernetes"}
	c.AddCommand(checkpointListCommand(), checkpointVerifyCommand(), checkpointShowCommand(),
		checkpointPullCommand(), checkpointSendCommand())
	return c
}

func checkpointListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list [FOLDER]",
		Short: "List the checkpoints of a folder or blob URL",
		Args:  oneFolder,
		RunE: func(cmd *cobra.Command, args []string) error {
			location, err := folderOrNewestRun(cmd, args)
			if err != nil {
				return err
			}
			return eachCheckpoint(cmd, location, asJSON, false)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	return c
}

func checkpointVerifyCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify [FOLDER]",
		Short: "Compare every checkpoint of a folder with its manifest",
		Args:  oneFolder,
		RunE: func(cmd *cobra.Command, args []string) error {
			location, err := folderOrNewestRun(cmd, args)
			if err != nil {
				return err
			}
			return eachCheckpoint(cmd, location, asJSON, true)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	return c
}

func oneFolder(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return app.Usagef("%d arguments; give one folder or blob URL (see `%s --help`)",
			len(args), cmd.CommandPath())
	}
	return nil
}

// folderOrNewestRun is the given folder, or the newest run's.
func folderOrNewestRun(cmd *cobra.Command, args []string) (location string, err error) {
	if len(args) == 1 {
		location = args[0]
	}
	return location, orNewestRun(cmd, &location)
}

// orNewestRun replaces an empty location by the folder of the newest run under ./runs, and one in a
// claim of Kubernetes by a copy. It names both on standard error.
func orNewestRun(cmd *cobra.Command, location *string) error {
	if *location != "" {
		return fromClaim(cmd, location)
	}
	folder, step, err := job.NewestRun(cmd.Context())
	if err != nil {
		return err
	}
	cmd.PrintErrf("the newest run: %s, step %d\n", folder, step)
	*location = folder
	return nil
}

// eachCheckpoint prints a line for every checkpoint, and fails if one is damaged.
func eachCheckpoint(cmd *cobra.Command, location string, asJSON, verify bool) error {
	all, damaged := 0, 0
	err := checkpoint.Survey(cmd.Context(), location, checkpoint.Config{OpenBucket: bucket.Open},
		verify, func(row checkpoint.Row) error {
			if all++; row.Problem != "" {
				damaged++
			}
			return printRow(cmd, row, asJSON)
		})
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return app.Usage(err)
	case err == nil && damaged > 0:
		return fmt.Errorf("%d of %d checkpoints in %s are damaged", damaged, all, location)
	}
	return err
}

func printRow(cmd *cobra.Command, row checkpoint.Row, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(row)
	}
	text := fmt.Sprintf("step %-8d epoch %-5d %12d bytes  %s  %s", row.Step, row.Epoch,
		row.Bytes, row.Created.Format(time.DateTime), row.Path)
	if row.Problem != "" {
		text = fmt.Sprintf("step %-8d DAMAGED: %s", row.Step, row.Problem)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
	return err
}
