package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Row is a checkpoint in a Survey. A damaged one has a Problem; if its manifest cannot be read, it
// has only that and its Step.
type Row struct {
	Step    int64     `json:"step"`
	Epoch   int64     `json:"epoch"`
	Path    string    `json:"path"`
	Job     string    `json:"job"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"` // of all files
	Problem string    `json:"problem,omitempty"`
}

// Survey calls each with a row for every checkpoint of a folder, in the order of the steps, or for
// the one whose own folder location is. With verify it compares each one's files with its manifest.
// Without any the error is ErrNone.
func Survey(
	ctx context.Context, location string, c Config, verify bool, each func(Row) error,
) error {
	store, err := Open(ctx, location, c)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	steps, err := store.Steps(ctx)
	if err != nil {
		return err
	}
	if len(steps) == 0 {
		return surveyOne(ctx, location, c, verify, each)
	}
	for _, step := range steps {
		row, found := Row{Step: step}, (*Checkpoint)(nil)
		if found, err = store.Load(ctx, step); err == nil {
			row, err = found.survey(ctx, verify)
		}
		var damage *DamageError
		switch {
		case errors.Is(err, ErrNone): // it has been deleted meanwhile
			continue
		case errors.As(err, &damage):
			row.Problem = err.Error()
		case err != nil:
			return err
		}
		if err := each(row); err != nil {
			return err
		}
	}
	return nil
}

// surveyOne is Survey for a checkpoint's own folder. Its damage is an error.
func surveyOne(
	ctx context.Context, location string, c Config, verify bool, each func(Row) error,
) error {
	store, found, err := Resolve(ctx, location, c)
	var damage *DamageError
	if errors.As(err, &damage) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w in %s", ErrNone, location)
	}
	defer func() { _ = store.Close() }()
	row, err := found.survey(ctx, verify)
	if err != nil {
		return err
	}
	return each(row)
}

// survey returns the checkpoint's row, and with verify an error if it is damaged.
func (c *Checkpoint) survey(ctx context.Context, verify bool) (row Row, err error) {
	row = Row{Step: c.Step, Epoch: c.Epoch, Path: c.Path, Job: c.Job, Created: c.Created}
	for _, f := range c.Files {
		row.Bytes += f.Size
	}
	if verify {
		err = c.Verify(ctx)
	}
	return row, err
}
