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
	"google.golang.org/protobuf/proto"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Checkpoints is a job's checkpoint folder. The zero value belongs to a job without one.
type Checkpoints struct {
	Store *checkpoint.Store // nil: the job keeps none

	before time.Duration // training time before since
	since  time.Time     // zero: unknown
}

const checkpointFlag = "--checkpoint-dir"

// Fault injects a failure into an operation on a checkpoint's files; see checkpoint.Config.
type Fault func(op checkpoint.Op, step int64, path string) error

// Learned identifies what a job learns from: Data, or a corpus.Corpus.
type Learned interface {
	Vocabulary() *corpus.Vocabulary
	Fingerprint() string
}

// OpenCheckpoints opens the spec's folder. It refuses a folder with checkpoints that this job, on
// these data, cannot continue. Fault may be nil.
func OpenCheckpoints(
	ctx context.Context, spec *rondov1.JobSpec, d Learned, fault Fault,
) (*Checkpoints, error) {
	if !jobspec.KeepsModel(spec) {
		return &Checkpoints{}, nil
	}
	newest, err := checkOwner(ctx, spec, d)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("the name of this host: %w", err)
	}
	store, err := checkpoint.Open(ctx, spec.CheckpointDir, checkpoint.Config{
		Job:        spec.Job,
		Identity:   jobspec.Identity(spec, d.Fingerprint()),
		OpenBucket: bucket.Open,
		Fault:      fault,
		Owner:      &checkpoint.Owner{Run: spec.Submitted, Host: host, Process: os.Getpid()},
	})
	if err != nil {
		return nil, folderError(checkpointFlag, err)
	}
	c := &Checkpoints{Store: store}
	step, err := jobspec.ParseResumeStep(spec.Resume)
	if err == nil && newest != nil && newest.Created.Before(time.Unix(0, spec.Submitted)) {
		newest, _ = store.Load(ctx, step) // Find reports its error
	}
	c.startClock(spec, newest)
	return c, nil
}

// Refused returns a usage error if another run, which lives, writes the folder.
func (c *Checkpoints) Refused(ctx context.Context) error {
	if c.Store == nil {
		return nil
	}
	err := c.Store.Refused(ctx)
	var owned *checkpoint.OwnedError
	if errors.As(err, &owned) {
		return app.Usagef("%s: %w", checkpointFlag, err)
	}
	return err
}

// leastTime is a Unix time in nanoseconds, in 2001. A smaller JobSpec.submitted is a run's number,
// set by hand, not a time.
const leastTime = 1e18

// startClock sets the moment from which training time counts, and the time before it. newest is a
// checkpoint of this run or of the run that it continues, or nil.
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

// Elapsed is the job's training time, with the runs that it continues, if it is known. Waits and
// pauses after the submission count.
func (c *Checkpoints) Elapsed(now time.Time) (elapsed time.Duration, known bool) {
	return c.before + max(0, now.Sub(c.since)), !c.since.IsZero()
}

// checkOwner returns the folder's newest checkpoint if this job can continue it. Otherwise the
// error names the flags that differ. If all are damaged it returns nil: Find reports the damage.
func checkOwner(
	ctx context.Context, spec *rondov1.JobSpec, d Learned,
) (*checkpoint.Checkpoint, error) {
	folder := spec.CheckpointDir
	store, err := checkpoint.Open(ctx, folder, checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return nil, folderError(checkpointFlag, err)
	}
	defer func() { _ = store.Close() }()
	newest, err := store.Latest(ctx)
	var damage *checkpoint.DamageError
	if errors.Is(err, checkpoint.ErrNone) || errors.As(err, &damage) {
		return nil, nil
	}
	if err != nil {
		return nil, storageError(err)
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
	changed := changedFiles(owner, d)
	if !slices.Equal(newest.Vocabulary, d.Vocabulary().Tokens()) {
		return refuse(fmt.Sprintf("another vocabulary (%d tokens, and this corpus has %d)%s",
			len(newest.Vocabulary), d.Vocabulary().Len(), changed))
	}
	if newest.Identity != jobspec.Identity(spec, d.Fingerprint()) {
		return refuse("other data with the same vocabulary" + changed)
	}
	return newest, nil
}

// maxRecordedFiles bounds the files that a checkpoint names.
const maxRecordedFiles = 10_000

// filesOf are the files of a job's corpus; nil: they are not known.
func filesOf(d Learned) corpus.Files {
	if known, ok := d.(interface{ Files() corpus.Files }); ok {
		return known.Files()
	}
	return nil
}

// WithFiles returns a job's spec with the files of its corpus, for a checkpoint.
func WithFiles(spec *rondov1.JobSpec, d Learned) *rondov1.JobSpec {
	files := filesOf(d)
	if len(files) > maxRecordedFiles {
		return spec
	}
	spec = proto.CloneOf(spec)
	for _, f := range files {
		spec.CorpusFiles = append(spec.CorpusFiles,
			&rondov1.CorpusFile{Name: f.Name, Bytes: f.Bytes, Digest: f.Digest})
	}
	return spec
}

// changedFiles says how the files that a checkpoint's job has read differ from the data; empty: not
// at all, or nothing is known of them.
func changedFiles(owner *rondov1.JobSpec, d Learned) string {
	var was corpus.Files
	for _, f := range owner.CorpusFiles {
		was = append(was, corpus.File{Name: f.Name, Bytes: f.Bytes, Digest: f.Digest})
	}
	now := filesOf(d)
	if len(was) == 0 || len(now) == 0 {
		return ""
	}
	if changed := now.Changed(was); changed != "" {
		return ": there, " + changed
	}
	return ""
}

// SpecText is a job as a manifest has it: with all fields, so that a zero is not read as a default.
func SpecText(spec *rondov1.JobSpec) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(spec)
}

// Spec is the job that made a checkpoint. Fields that its version did not have get their defaults.
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

// Probe checks before training that a checkpoint can be written.
func Probe(spec *rondov1.JobSpec) error {
	folder := spec.CheckpointDir
	if !jobspec.KeepsModel(spec) || strings.Contains(folder, "://") {
		return nil // opening a blob URL checks that
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return folderError(checkpointFlag, fmt.Errorf("%w: choose a writable folder", err))
	}
	probe, err := os.CreateTemp(folder, ".rondo-probe-")
	if err != nil {
		return folderError(checkpointFlag, fmt.Errorf("%w: choose a writable folder", err))
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// Find returns the checkpoint that --resume asks for, with every byte verified; nil to start from
// scratch.
func (c *Checkpoints) Find(
	ctx context.Context, spec *rondov1.JobSpec,
) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	switch spec.Resume {
	case "auto":
		newest, err := c.Store.LatestValid(ctx)
		if errors.Is(err, checkpoint.ErrNone) {
			return nil, nil
		}
		return newest, err
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

// FindNewest returns the newest checkpoint whose bytes are all sound, for a job whose workers have
// lost its state; nil if there is none. If all are damaged, it fails: the job must not lose what it
// has learned without a word.
func (c *Checkpoints) FindNewest(ctx context.Context) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	found, err := c.Store.LatestValid(ctx)
	var damage *checkpoint.DamageError
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return nil, nil
	case errors.As(err, &damage):
		return nil, fmt.Errorf("%w; to start anew, give another %s", err, checkpointFlag)
	}
	return found, err
}

// Later returns this run's newest checkpoint, with its files unread, if it is of a later step than
// after; else nil.
func (c *Checkpoints) Later(
	ctx context.Context, spec *rondov1.JobSpec, after int64,
) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	newest, err := c.own(ctx, spec)
	if err != nil || newest == nil || newest.Step <= after {
		return nil, err
	}
	return newest, nil
}

// Start returns the checkpoint for a ring in which no worker has a state: the newest sound one if
// this run has made one, else the one that --resume asks for; nil to start from scratch.
func (c *Checkpoints) Start(
	ctx context.Context, spec *rondov1.JobSpec,
) (*checkpoint.Checkpoint, error) {
	if c.Store == nil {
		return nil, nil
	}
	own, err := c.own(ctx, spec)
	if err != nil {
		return nil, err
	}
	if own != nil {
		return c.FindNewest(ctx)
	}
	return c.Find(ctx, spec)
}

// own returns the newest checkpoint, with its files unread, if this run of the job has made it;
// else nil.
func (c *Checkpoints) own(
	ctx context.Context, spec *rondov1.JobSpec,
) (*checkpoint.Checkpoint, error) {
	newest, err := c.Store.Latest(ctx)
	var damage *checkpoint.DamageError
	if errors.Is(err, checkpoint.ErrNone) || errors.As(err, &damage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	owner, err := Spec(newest)
	if err != nil || owner.Submitted == 0 || owner.Submitted != spec.Submitted {
		return nil, err
	}
	return newest, nil
}

// Abandon removes the checkpoints after the one that --resume STEP names, before this run makes its
// first. Otherwise these old ones would pass for the run's newest.
func (c *Checkpoints) Abandon(ctx context.Context, spec *rondov1.JobSpec) error {
	if spec.Resume == "auto" || spec.Resume == "never" {
		return nil
	}
	step, err := jobspec.ParseResumeStep(spec.Resume)
	if err != nil {
		return err
	}
	own, err := c.own(ctx, spec)
	if err != nil || own != nil {
		return err
	}
	return c.Store.RemoveAfter(ctx, step)
}

// explain adds a sound checkpoint that could be used instead to the report of a damaged one.
func (c *Checkpoints) explain(ctx context.Context, err error) error {
	var damage *checkpoint.DamageError
	if !errors.As(err, &damage) {
		return err
	}
	sound, fallback := c.Store.LatestValid(ctx)
	if fallback != nil {
		return fmt.Errorf("%w; no other checkpoint there is sound", err)
	}
	return fmt.Errorf("%w; the newest sound one has step %d: give --resume %d",
		err, sound.Step, sound.Step)
}

// Close closes the folder.
func (c *Checkpoints) Close() error {
	if c.Store == nil {
		return nil
	}
	return c.Store.Close()
}
