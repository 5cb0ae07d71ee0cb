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
	c := &cobra.Command{Use: "checkpoint", Short: "Inspect a folder of checkpoints"}
	c.AddCommand(checkpointListCommand(), checkpointVerifyCommand(), checkpointShowCommand())
	return c
}

// checkpointRow is a command's output for one checkpoint.
type checkpointRow struct {
	Step    int64     `json:"step"`
	Epoch   int64     `json:"epoch"`
	Path    string    `json:"path"`
	Job     string    `json:"job"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"`
	Problem string    `json:"problem,omitempty"`
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

// orNewestRun replaces an empty location by the folder of the newest run under ./runs, and names
// it on standard error.
func orNewestRun(cmd *cobra.Command, location *string) error {
	if *location != "" {
		return nil
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
	ctx := cmd.Context()
	store, err := checkpoint.Open(ctx, location, checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	steps, err := store.Steps(ctx)
	if err != nil {
		return err
	}
	if len(steps) == 0 {
		if done, err := oneCheckpoint(cmd, location, asJSON, verify); done {
			return err
		}
		return app.Usage(fmt.Errorf("%w in %s", checkpoint.ErrNone, location))
	}
	damaged := 0
	for _, step := range steps {
		row := checkpointRow{Step: step}
		loaded, err := store.Load(ctx, step)
		if err == nil {
			row = describe(loaded)
			if verify {
				err = loaded.Verify(ctx)
			}
		}
		var damage *checkpoint.DamageError
		if err != nil && !errors.As(err, &damage) {
			return err
		}
		if err != nil {
			damaged++
			row.Problem = err.Error()
		}
		if err := printRow(cmd, row, asJSON); err != nil {
			return err
		}
	}
	if damaged > 0 {
		return fmt.Errorf("%d of %d checkpoints in %s are damaged", damaged, len(steps), location)
	}
	return nil
}

// oneCheckpoint prints the line of a step's folder; done is false if location is no such folder.
func oneCheckpoint(
	cmd *cobra.Command, location string, asJSON, verify bool,
) (done bool, err error) {
	store, c, err := checkpoint.Resolve(cmd.Context(), location,
		checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return false, err
	}
	defer func() { _ = store.Close() }()
	if verify {
		if err := c.Verify(cmd.Context()); err != nil {
			return true, err
		}
	}
	return true, printRow(cmd, describe(c), asJSON)
}

func describe(c *checkpoint.Checkpoint) checkpointRow {
	row := checkpointRow{Step: c.Step, Epoch: c.Epoch, Path: c.Path, Job: c.Job,
		Created: c.Created}
	for _, f := range c.Files {
		row.Bytes += f.Size
	}
	return row
}

func printRow(cmd *cobra.Command, row checkpointRow, asJSON bool) error {
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
