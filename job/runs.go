package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"rondo/checkpoint"
	"rondo/internal/app"
)

// RunsFolder is the folder, in the current one, of the runs of jobs without --checkpoint-dir.
const RunsFolder = "runs"

// maxRunsInSecond bounds the runs of one name that start in the same second.
const maxRunsInSecond = 1000

// NewRunFolder makes an empty folder NAME-TIME under RunsFolder for a run's checkpoints. Two
// callers never get the same one. remove deletes the folder and RunsFolder if they are empty.
func NewRunFolder(name string, now time.Time) (folder string, remove func(), err error) {
	runs, err := filepath.Abs(RunsFolder)
	if err != nil {
		return "", nil, err
	}
	base := filepath.Join(runs, fmt.Sprintf("%s-%s", name, now.Format("20060102-150405")))
	for n := 1; n <= maxRunsInSecond; n++ {
		folder = base
		if n > 1 {
			folder = fmt.Sprintf("%s-%d", base, n)
		}
		// Another run may remove an empty RunsFolder between the two calls.
		if err = os.MkdirAll(runs, 0o755); err == nil {
			err = os.Mkdir(folder, 0o755)
		}
		if err == nil {
			return folder, func() {
				_ = os.Remove(folder) // fails, as it should, if the folder is not empty
				_ = os.Remove(runs)
			}, nil
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return "", nil, folderError(checkpointFlag, fmt.Errorf("%w: choose a folder that can be "+
		"written, or none to keep no model", err))
}

// NewestRun returns the folder under RunsFolder with the newest checkpoint of all, and that
// checkpoint's step. Folders without a checkpoint do not count. A folder whose newest checkpoint
// cannot be read counts with its modification time; if it is the newest, that is an error.
func NewestRun(ctx context.Context) (folder string, step int64, err error) {
	entries, err := os.ReadDir(RunsFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", 0, app.Usage(err)
	}
	var newest time.Time
	var unreadable error // of the newest run
	for _, entry := range entries {
		candidate := filepath.Join(RunsFolder, entry.Name())
		if !entry.IsDir() {
			continue
		}
		store, c, err := checkpoint.Resolve(ctx, candidate, checkpoint.Config{})
		if errors.Is(err, checkpoint.ErrNone) {
			continue
		}
		if err != nil {
			if ctx.Err() != nil {
				return "", 0, err
			}
			info, statErr := os.Stat(candidate)
			if statErr != nil {
				return "", 0, statErr
			}
			if info.ModTime().After(newest) {
				newest, unreadable = info.ModTime(), fmt.Errorf("the newest run, %s, cannot be "+
					"read: %w: give the folder of another run or of one checkpoint", candidate, err)
			}
			continue
		}
		if err := store.Close(); err != nil {
			return "", 0, err
		}
		if c.Created.After(newest) {
			folder, step, newest, unreadable = candidate, c.Step, c.Created, nil
		}
	}
	if unreadable != nil {
		return "", 0, unreadable
	}
	if folder == "" {
		return "", 0, app.Usagef("no checkpoint is given, and %s%c of the current folder has no "+
			"run: give a folder of checkpoints, or train one with `rondo train`", RunsFolder,
			filepath.Separator)
	}
	return folder, step, nil
}
