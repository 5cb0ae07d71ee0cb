package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Checkpoints is a job's checkpoint folder. The zero value is that of a job that keeps none.
type Checkpoints struct {
	Store *checkpoint.Store // nil: the job keeps none

	before time.Duration // of training until since
	since  time.Time     // zero: it is not known
}

const checkpointFlag = "--checkpoint-dir"

// Fault is what goes wrong with an operation on a checkpoint's files; see checkpoint.Config.
type Fault func(op checkpoint.Op, step int64, path string) error

// OpenCheckpoints opens the folder that the spec names, and refuses one whose checkpoints this
// job, which reads text, cannot continue. Fault may be nil.
func OpenCheckpoints(
	ctx context.Context, spec *rondov1.JobSpec, text *corpus.Corpus, fault Fault,
) (*Checkpoints, error) {
	if !jobspec.KeepsModel(spec) {
		return &Checkpoints{}, nil
	}
	newest, err := checkOwner(ctx, spec, text)
	if err != nil {
		return nil, err
	}
	store, err := checkpoint.Open(ctx, spec.CheckpointDir, checkpoint.Config{
		Job:        spec.Job,
		Identity:   jobspec.Identity(spec, text.Fingerprint()),
		OpenBucket: bucket.Open,
		Fault:      fault,
	})
	if err != nil {
		return nil, misplaced(checkpointFlag, err)
	}
	c := &Checkpoints{Store: store}
	step, err := jobspec.ParseResumeStep(spec.Resume)
	if err == nil && newest != nil && newest.Created.Before(time.Unix(0, spec.Submitted)) {
		newest, _ = store.Load(ctx, step) // what is wrong with it, Find says
	}
	c.startClock(spec, newest)
	return c, nil
}

// leastTime is a Unix time in nanoseconds, in 2001. A run that was submitted with a smaller number
// has counted its runs by hand: the number is no time.
const leastTime = 1e18

// startClock finds from which moment on the time of training counts, and how much there was before
// it. The newest checkpoint is of this run, of the run that this one goes on from, or nil.
func (c *Checkpoints) startClock(spec *rondov1.JobSpec, newest *checkpoint.Checkpoint) {
	if spec.Submitted < leastTime {
		return
	}
	since := time.Unix(0, spec.Submitted)
	if newest != nil {
		seconds, known := newest.Metrics[metricSeconds]
		if !known {
			return
		}
		c.before = time.Duration(seconds * float64(time.Second))
		if newest.Created.After(since) { // it is of this run
			since = newest.Created
		}
	}
	c.since = since
}

// Elapsed is how long the job has trained, the runs that it goes on from included, if that is
// known. Waits and pauses count from the submission on.
func (c *Checkpoints) Elapsed(now time.Time) (elapsed time.Duration, known bool) {
	return c.before + max(0, now.Sub(c.since)), !c.since.IsZero()
}

// checkOwner compares the job with the one whose newest checkpoint lies in its folder, flag by
// flag, so that the error says what to change, and returns that checkpoint. A damaged one is left
// for Find to judge: it then returns nil.
func checkOwner(
	ctx context.Context, spec *rondov1.JobSpec, text *corpus.Corpus,
) (*checkpoint.Checkpoint, error) {
	folder := spec.CheckpointDir
	store, err := checkpoint.Open(ctx, folder, checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return nil, misplaced(checkpointFlag, err)
	}
	defer func() { _ = store.Close() }()
	newest, err := store.Latest(ctx)
	var damage *checkpoint.DamageError
	if errors.Is(err, checkpoint.ErrNone) || errors.As(err, &damage) {
		return nil, nil
	}
	if err != nil {
		return nil, wrongPlace(err)
	}
	owner, err := Spec(newest)
	if err != nil {
		return nil, err
	}
	refuse := func(what string) (*checkpoint.Checkpoint, error) {
		return nil, app.Usagef("%s %s belongs to another job, which has %s: choose another "+
			"folder, or give that job's flags", checkpointFlag, folder, what)
	}
	if differences := jobspec.Differences(owner, spec); len(differences) > 0 {
		return refuse(strings.Join(differences, ", "))
	}
	if !slices.Equal(newest.Vocabulary, text.Vocabulary().Tokens()) {
		return refuse(fmt.Sprintf("another vocabulary (%d tokens, and this corpus has %d)",
			len(newest.Vocabulary), text.Vocabulary().Len()))
	}
	if newest.Identity != jobspec.Identity(spec, text.Fingerprint()) {
		return refuse("another text with the same vocabulary")
	}
	return newest, nil
}

// SpecText is a job as a manifest has it. It has all fields, so that a zero in it is no default.
func SpecText(spec *rondov1.JobSpec) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(spec)
}

// Spec is the job that has made a checkpoint. What its version of the program did not know has its
// default.
func Spec(c *checkpoint.Checkpoint) (*rondov1.JobSpec, error) {
	fields, spec := map[string]json.RawMessage{}, &rondov1.JobSpec{}
	text, err := SpecText(jobspec.Default())
	if err == nil {
		err = errors.Join(json.Unmarshal(text, &fields), json.Unmarshal(c.Spec, &fields))
	}
	if err == nil {
		text, err = json.Marshal(fields)
	}
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest.json in %s: its spec cannot be read: %w", c.Path, err)
	}
	return spec, nil
}

// Probe makes sure, before anything is trained, that a checkpoint could be written.
func Probe(spec *rondov1.JobSpec) error {
	folder := spec.CheckpointDir
	if !jobspec.KeepsModel(spec) || strings.Contains(folder, "://") {
		return nil // storage says so when it is opened
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return misplaced(checkpointFlag, fmt.Errorf("%w: choose a folder that can be written", err))
	}
	probe, err := os.CreateTemp(folder, ".rondo-probe-")
	if err != nil {
		return misplaced(checkpointFlag, fmt.Errorf("%w: choose a folder that can be written", err))
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// Find returns the checkpoint that --resume asks for, every byte of it verified; nil to start from
// scratch.
func (c *Checkpoints) Find(
	ctx context.Context, spec *rondov1.JobSpec,
) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	switch spec.Resume {
	case "auto":
		newest, err := c.Store.Latest(ctx)
		if errors.Is(err, checkpoint.ErrNone) {
			return nil, nil
		}
		if err == nil {
			err = newest.Verify(ctx)
		}
		return newest, c.explain(ctx, err)
	case "never":
		steps, err := c.Store.Steps(ctx)
		if err == nil && len(steps) > 0 {
			err = app.Usagef("--resume never, but --checkpoint-dir %s holds checkpoints up to "+
				"step %d: choose another folder, or remove them", spec.CheckpointDir,
				steps[len(steps)-1])
		}
		return nil, err
	}
	step, err := jobspec.ParseResumeStep(spec.Resume)
	if err != nil {
		return nil, err
	}
	found, err := c.Store.Load(ctx, step)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, app.Usage(fmt.Errorf("--resume %d: %w", step, err))
	}
	if err == nil {
		err = found.Verify(ctx)
	}
	return found, c.explain(ctx, err)
}

// FindNewest returns the newest checkpoint every byte of which is sound, for a job that has lost
// what its workers held; nil if there is none.
func (c *Checkpoints) FindNewest(ctx context.Context) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	found, _, err := c.Store.LatestValid(ctx)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, nil
	}
	return found, err
}

// Start returns what a ring starts from in which nobody has a state: the newest sound checkpoint,
// if this very run of the job has made one, and else the one that --resume asks for; nil for a
// start from scratch.
func (c *Checkpoints) Start(
	ctx context.Context, spec *rondov1.JobSpec,
) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	own, err := c.hasOwn(ctx, spec)
	if err != nil {
		return nil, err
	}
	if own {
		return c.FindNewest(ctx)
	}
	return c.Find(ctx, spec)
}

// hasOwn reports whether this run of the job has made the newest checkpoint.
func (c *Checkpoints) hasOwn(ctx context.Context, spec *rondov1.JobSpec) (bool, error) {
	newest, err := c.Store.Latest(ctx)
	var damage *checkpoint.DamageError
	if errors.Is(err, checkpoint.ErrNone) || errors.As(err, &damage) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	owner, err := Spec(newest)
	if err != nil {
		return false, err
	}
	return owner.Submitted != 0 && owner.Submitted == spec.Submitted, nil
}

// Abandon removes the checkpoints after the one that --resume STEP names, before this run of the
// job makes its first: the job takes another way from there, and they would pass for its newest.
func (c *Checkpoints) Abandon(ctx context.Context, spec *rondov1.JobSpec) error {
	if spec.Resume == "auto" || spec.Resume == "never" {
		return nil
	}
	step, err := jobspec.ParseResumeStep(spec.Resume)
	if err != nil {
		return err
	}
	own, err := c.hasOwn(ctx, spec)
	if err != nil || own {
		return err
	}
	return c.Store.RemoveAfter(ctx, step)
}

// explain adds to the report of a damaged checkpoint which one could be used instead.
func (c *Checkpoints) explain(ctx context.Context, err error) error {
	var damage *checkpoint.DamageError
	if !errors.As(err, &damage) {
		return err
	}
	sound, _, fallback := c.Store.LatestValid(ctx)
	if fallback != nil {
		return fmt.Errorf("%w; no other checkpoint there is sound", err)
	}
	return fmt.Errorf("%w; the newest sound one is of step %d: --resume %d goes on from it",
		err, sound.Step, sound.Step)
}

// Close closes the folder.
func (c *Checkpoints) Close() error {
	if c.Store == nil {
		return nil
	}
	return c.Store.Close()
}
