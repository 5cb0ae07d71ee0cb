package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/job/recipe"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// maxRestarts is the largest --restarts.
const maxRestarts = maxProcesses / 2

// Run is a job on this machine.
type Run struct {
	Spec     *rondov1.JobSpec
	Etcd     []string // endpoints; nil: an embedded one
	Verbose  bool
	TLS      string // folder of certificates; empty: no TLS
	Insecure bool   // see meet.Config
	// Recipe is what the corpus is compared with; nil: nothing.
	Recipe *recipe.Recipe
	// LocalWorkers is the number of the job's workers on this machine; negative: all.
	LocalWorkers int
	// Restarts is the number of dead worker processes that are replaced.
	Restarts int
	// OpenPage opens the job's web page; nil: there is none.
	OpenPage func(ctx context.Context, spec *rondov1.JobSpec) (Page, error)
	// Show is called with each event, in order. Log is called with each log line.
	Show func(context.Context, telemetry.Event) error
	Log  func(line string)

	devices job.Choice // devices of this machine's workers
	page    Page       // nil: there is none
}

// Train runs the job to its end. When ctx ends it stops all workers at the same step and waits
// for their checkpoint. It returns the job's last event.
func (r Run) Train(ctx context.Context) (outcome telemetry.Done, err error) {
	begun := false
	defer func() {
		if !begun && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = errors.New("interrupted before the job began")
		}
	}()
	if err := r.complete(); err != nil {
		return outcome, err
	}
	remove, err := r.nameFolder(time.Now())
	if err != nil {
		return outcome, err
	}
	defer remove()
	if r.devices, err = r.chooseDevices(); err != nil {
		return outcome, err
	}
	if err := r.check(ctx); err != nil {
		return outcome, err
	}
	endpoints := r.Etcd
	if len(endpoints) == 0 {
		etcd, stop, err := temporaryEtcd(ctx)
		if err != nil {
			return outcome, err
		}
		defer stop()
		endpoints = []string{etcd.Endpoint()}
		r.Log(fmt.Sprintf("meanwhile: rondo workers --etcd %s --job %s; rondo scale N, with the "+
			"same flags", endpoints[0], r.Spec.Job))
	}
	where := meet.Config{Etcd: endpoints, Job: r.Spec.Job, Log: r.logger(), TLS: r.TLS,
		Role: certs.User, Insecure: r.Insecure}
	store, err := where.Store(ctx)
	if err != nil {
		return outcome, err
	}
	defer func() { _ = store.Close() }()
	if err := r.submit(ctx, store); err != nil {
		return outcome, err
	}
	if err := r.Show(ctx, telemetry.Folder{Path: r.folder()}); err != nil {
		return outcome, fmt.Errorf("showing the job's events: %w", err)
	}
	var closePage func()
	r.page, closePage = r.openPage(ctx, store)
	defer closePage()
	begun = true
	return r.supervise(ctx, where, store)
}

// complete checks the run's own flags and makes the spec's paths absolute, because workers may have
// another current folder.
func (r Run) complete() error {
	if r.LocalWorkers < -1 || r.LocalWorkers > int(r.Spec.Workers) {
		return app.Usagef("--local-workers %d is not -1 (all) or 0 to --workers, %d",
			r.LocalWorkers, r.Spec.Workers)
	}
	if len(r.Etcd) == 0 && r.localWorkers() < int(r.Spec.Workers) {
		return app.Usagef("--local-workers %d leaves workers to other machines, which need an "+
			"--etcd that they can reach", r.LocalWorkers)
	}
	if r.Restarts < 0 || r.Restarts > maxRestarts {
		return app.Usagef("--restarts %d is not 0 to %d", r.Restarts, maxRestarts)
	}
	paths := []*string{&r.Spec.Corpus, &r.Spec.EvalCorpus, &r.Spec.Vectors, &r.Spec.AuditDir,
		&r.Spec.Trace}
	if jobspec.KeepsModel(r.Spec) {
		paths = append(paths, &r.Spec.CheckpointDir)
	}
	for _, path := range paths {
		if *path == "" || strings.Contains(*path, "://") || strings.HasPrefix(*path, "builtin:") {
			continue
		}
		whole, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = whole
	}
	return nil
}

// nameFolder makes a checkpoint folder for a job without --checkpoint-dir and enters it in the
// spec. remove deletes the folder if nothing was saved.
func (r Run) nameFolder(now time.Time) (remove func(), err error) {
	if r.Spec.CheckpointDir != "" {
		return func() {}, nil
	}
	if r.Spec.CheckpointDir, remove, err = job.NewRunFolder(r.Spec.Job, now); err != nil {
		return nil, err
	}
	r.Spec.Resume = "never" // the folder is new: workers need not look for a checkpoint
	if r.localWorkers() < int(r.Spec.Workers) {
		r.Log(fmt.Sprintf("checkpoints go to %s of the machine that rank 0 is on: with "+
			"--checkpoint-dir give a folder or bucket that all machines share",
			r.Spec.CheckpointDir))
	}
	return remove, nil
}

// folder returns the job's checkpoint folder; empty: none.
func (r Run) folder() string {
	if !jobspec.KeepsModel(r.Spec) {
		return ""
	}
	return r.Spec.CheckpointDir
}

// check reports errors in the job before anything is started.
func (r Run) check(ctx context.Context) error {
	text := job.Crowded(int(r.Spec.Threads), r.localWorkers(), runtime.GOMAXPROCS(0))
	if text != "" {
		r.Log(text)
	}
	data, err := job.OpenData(ctx, r.Spec)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	if r.Recipe != nil {
		training, validation := data.Sizes()
		line := r.Recipe.Check(training, validation, int64(data.Extent().Tokens))
		if line != "" {
			r.Log(line)
		}
	}
	if _, err := job.NetworkOf(r.Spec, data.Extent()); err != nil {
		return err
	}
	r.logDevices(data.Extent())
	if err := job.Probe(r.Spec); err != nil {
		return err
	}
	if err := probeFolder("--audit-dir", r.Spec.AuditDir); err != nil {
		return err
	}
	if err := probeFolder("--trace", r.Spec.Trace); err != nil {
		return err
	}
	checkpoints, err := job.OpenCheckpoints(ctx, r.Spec, data, nil)
	if err != nil {
		return err
	}
	defer func() { _ = checkpoints.Close() }()
	if len(r.Etcd) == 0 { // else submit looks for a job of this name that lives
		if err := checkpoints.Refused(ctx); err != nil {
			return err
		}
	}
	found, err := checkpoints.Find(ctx, r.Spec)
	if err != nil {
		return err
	}
	if found == nil {
		return nil
	}
	if last := job.Steps(r.Spec, data); found.Step > last {
		return app.Usagef("the checkpoint %s is past the job's last step, %d: raise --steps or "+
			"--epochs, or give --resume STEP", found.Path, last)
	}
	return job.CheckEarlyStop(r.Spec, data, found)
}

// probeFolder creates a flag's folder if necessary and checks that files can be written to it.
func probeFolder(flag, folder string) error {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return app.Usagef("%s: %w: choose a folder that can be written", flag, err)
	}
	probe, err := os.CreateTemp(folder, ".rondo-probe-")
	if err != nil {
		return app.Usagef("%s: %w: choose a folder that can be written", flag, err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// submit stores the job's spec. First it ends an earlier run of the same name whose processes died
// without ending it, for example in a power cut.
func (r Run) submit(ctx context.Context, store *etcdstore.Store) error {
	r.Spec.Submitted = time.Now().UnixNano()
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Spec)
	if err != nil {
		return fmt.Errorf("the job's spec: %w", err)
	}
	_, created, err := store.PutSpec(ctx, spec)
	if err != nil || created {
		return err
	}
	if err := r.endAbandoned(ctx, store); err != nil {
		return fmt.Errorf("job %q at this etcd: %w", r.Spec.Job, err)
	}
	if _, created, err = store.PutSpec(ctx, spec); err == nil && !created {
		err = app.Usagef("job %q has just been submitted by somebody else: choose another name "+
			"with --job", r.Spec.Job)
	}
	return err
}

// supervise starts the coordinator and the workers, and watches until the job has ended. The end of
// ctx only asks the processes to stop.
func (r Run) supervise(
	ctx context.Context, where meet.Config, store *etcdstore.Store,
) (outcome telemetry.Done, err error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	led := make(chan error, 1)
	go func() { led <- lead(life, where) }()
	// Without a leader the workers keep their state for PauseTimeout. So the client waits as long.
	quiet := where
	quiet.Log = r.retryLog(where.Log)
	client, err := quiet.Client(store, r.Spec.PauseTimeout.AsDuration())
	if err != nil {
		end()
		return outcome, errors.Join(err, <-led)
	}
	workers := NewWorkers(func(worker int) []string { return r.workerCommand(where, worker) },
		r.workerLog)
	w := &watch{run: r, client: client, store: store, workers: workers, end: end}
	for ; w.wanted < r.localWorkers(); w.wanted++ {
		if err := workers.Start(w.wanted); err != nil {
			end()
			workers.Kill()
			workers.Wait(life)
			return outcome, errors.Join(err, <-led)
		}
	}
	unhook := context.AfterFunc(ctx, func() {
		r.Log("stopping after this step; interrupt again to end at once")
		w.stop(life, "interrupted")
	})
	defer unhook()
	watched, guarded := make(chan error, 1), make(chan struct{})
	go func() {
		watched <- client.Watch(life, func(e *rondov1.Event) error { return w.hear(life, e) })
	}()
	go func() {
		defer close(guarded)
		w.guard(life)
	}()
	var watchErr, ledErr error
	select {
	case watchErr = <-watched:
		if watchErr != nil {
			end()
		}
		ledErr = <-led
		end()
	case ledErr = <-led: // its watchers have the last event, or there were none
		end()
		watchErr = <-watched
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDelay)
	defer cancel()
	if killed := workers.Wait(grace); len(killed) > 0 {
		r.Log(fmt.Sprintf("the job has ended; worker processes %v did not, and were killed",
			killed))
	}
	<-guarded
	outcome, err = w.result(ledErr, watchErr)
	w.last(grace, err)
	return outcome, err
}

// lead runs the coordinator. The job's failure becomes this command's error.
func lead(ctx context.Context, where meet.Config) error {
	_, err := coordinator.Run(ctx, coordinator.Config{Config: where})
	var failed *app.JobError
	var left *app.LeftError
	switch {
	case errors.As(err, &failed):
		return failed.Err
	case errors.As(err, &left):
		return context.Canceled // this command asked it to leave
	}
	return err
}

// localWorkers returns the number of the job's worker processes on this machine.
func (r Run) localWorkers() int {
	if r.LocalWorkers >= 0 {
		return r.LocalWorkers
	}
	return int(r.Spec.Workers)
}

// workerCommand returns the command line of one of this machine's workers.
func (r Run) workerCommand(where meet.Config, worker int) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	argv := []string{self, "worker", "--supervised", "--etcd", strings.Join(where.Etcd, ","),
		"--job", where.Job, "--device", r.devices.Of(worker)}
	argv = append(argv, jobspec.AllowFlags(r.Spec)...)
	if r.TLS != "" {
		argv = append(argv, "--tls", r.TLS)
	}
	if r.Insecure {
		argv = append(argv, "--insecure")
	}
	if r.Verbose {
		argv = append(argv, "--verbose")
	}
	return argv
}

func (r Run) workerLog(worker int, line string) {
	r.Log(fmt.Sprintf("worker %d: %s", worker, line))
}

func (r Run) logger() *slog.Logger {
	level := slog.LevelWarn // events show the rest
	if r.Verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(lineWriter(r.Log), &slog.HandlerOptions{Level: level}))
}

// retryLog returns the log for retries. Only --verbose shows them, because retries are normal until
// a coordinator is elected.
func (r Run) retryLog(log *slog.Logger) *slog.Logger {
	if r.Verbose {
		return log
	}
	return nil
}

// lineWriter passes each write to the function, without the final line feed.
type lineWriter func(string)

func (w lineWriter) Write(p []byte) (int, error) {
	w(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
