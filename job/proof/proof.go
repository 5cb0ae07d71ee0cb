// Package proof checks a job's audit logs against its text and its checkpoints. Package audit does
// the proof; this one opens what the job names. Of this module it may import audit, checkpoint,
// corpus, internal/app and job.
package proof

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"rondo/audit"
	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job"
	rondov1 "rondo/proto/rondo/v1"
)

// Of checks the logs of a folder. It compares them with the checkpoints of another folder,
// unless that is "", and with the text, if the spec names one.
func Of(
	ctx context.Context, dir, checkpoints string, spec *rondov1.JobSpec,
) (report *audit.Report, err error) {
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, app.Usagef("there is no folder %s: give the job's --audit-dir", dir)
	} else if err != nil {
		return nil, app.Usage(err)
	} else if !info.IsDir() {
		return nil, app.Usagef("%s is not a folder: give the job's --audit-dir", dir)
	}
	var tokens corpus.Tokens
	if spec.Corpus != "" {
		text, err := job.OpenCorpus(ctx, spec, nil)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, text.Close()) }()
		if tokens, _, err = corpus.Split(text.Tokens(), spec.ValidationFraction); err != nil {
			return nil, app.Usage(err)
		}
	}
	var states []audit.State
	if checkpoints != "" {
		if states, err = savedStates(ctx, checkpoints); err != nil {
			return nil, err
		}
	}
	report, err = audit.Prove(ctx, os.DirFS(dir), tokens, states)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return report, nil
}

// savedStates reads the checkpoints of a folder.
func savedStates(ctx context.Context, folder string) (states []audit.State, err error) {
	store, err := checkpoint.Open(ctx, folder, checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return nil, app.Usage(err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	steps, err := store.Steps(ctx)
	if err == nil && len(steps) == 0 {
		err = app.Usagef("--checkpoint-dir: %w in %s", checkpoint.ErrNone, folder)
	}
	if err != nil {
		return nil, err
	}
	return States(ctx, store, steps)
}

// States reads the checkpoints of some steps, the damaged ones too. It passes over those that
// have been deleted meanwhile.
func States(
	ctx context.Context, store *checkpoint.Store, steps []int64,
) ([]audit.State, error) {
	var states []audit.State
	for _, step := range steps {
		state, err := savedState(ctx, store, step)
		var damage *checkpoint.DamageError
		if errors.As(err, &damage) {
			state = audit.State{Step: step, Path: damage.Path, Damage: damage.Error()}
			// One that is being deleted looks damaged until its manifest is gone.
			if _, gone := store.Load(ctx, step); errors.Is(gone, checkpoint.ErrNone) {
				err = gone
			}
		} else if err != nil && !errors.Is(err, checkpoint.ErrNone) {
			return nil, err
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			states = append(states, state)
		}
	}
	return states, nil
}

// savedState reads a checkpoint's parameters.
func savedState(
	ctx context.Context, store *checkpoint.Store, step int64,
) (state audit.State, err error) {
	saved, err := store.Load(ctx, step)
	if err != nil {
		return state, err
	}
	state = audit.State{Step: step, Path: saved.Path}
	if saved.Digest == 0 { // an older version saved it
		return state, nil
	}
	var file string
	if state.Digest, file, err = job.SavedDigest(ctx, saved); err != nil {
		return state, err
	}
	if state.Digest != saved.Digest {
		state.Damage = fmt.Sprintf("%s in %s has parameters of digest %d, and its manifest says %d",
			file, saved.Path, state.Digest, saved.Digest)
	}
	return state, nil
}
