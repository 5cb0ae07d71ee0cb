package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/coordinator"
	"rondo/cmd/internal/events"
	"rondo/cmd/internal/job"
	"rondo/cmd/internal/meet"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// stopTimeout bounds the time from a request to stop to the end of the job: the step in progress
// and the last checkpoint.
const stopTimeout = 5 * time.Minute

// Run is a job on this machine.
type Run struct {
	Spec    *rondov1.JobSpec
	Etcd    []string // endpoints; nil: an embedded one
	Verbose bool
	// Show is called with each event, in order; Log with each line of log.
	Show func(context.Context, telemetry.Event) error
	Log  func(line string)
}

// Train runs the job to its end. When ctx ends it stops all workers at the same step and waits
// for their checkpoint. It returns the job's last event.
func (r Run) Train(ctx context.Context) (outcome telemetry.Done, err error) {
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
	}
	where := meet.Config{Etcd: endpoints, Job: r.Spec.Job, Log: r.logger()}
	store, err := where.Store(ctx)
	if err != nil {
		return outcome, err
	}
	defer func() { _ = store.Close() }()
	if err := r.submit(ctx, store); err != nil {
		return outcome, err
	}
	return r.supervise(ctx, where, store)
}

// check finds what is wrong with the job before anything is started.
func (r Run) check(ctx context.Context) error {
	device, err := job.OpenDevice(r.Spec, int(r.Spec.Workers))
	if err != nil {
		return err
	}
	device.Close()
	data, err := job.OpenData(ctx, r.Spec)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	if _, err := job.ModelConfig(r.Spec, data.Corpus.Vocabulary().Len()); err != nil {
		return err
	}
	checkpoints, err := job.OpenCheckpoints(ctx, r.Spec, data.Corpus)
	if err != nil {
		return err
	}
	defer func() { _ = checkpoints.Close() }()
	found, err := checkpoints.Find(ctx, r.Spec)
	if err != nil {
		return err
	}
	if last := data.Steps(r.Spec); found != nil && found.Step > last {
		return app.Usagef("the checkpoint %s is past the job's last step, %d: raise --steps or "+
			"--epochs, or give --resume STEP", found.Path, last)
	}
	return nil
}

func temporaryEtcd(ctx context.Context) (*Etcd, func(), error) {
	dir, err := os.MkdirTemp("", "rondo-etcd-")
	if err != nil {
		return nil, nil, fmt.Errorf("embedded etcd: %w", err)
	}
	etcd, err := StartEtcd(ctx, dir)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return etcd, func() {
		etcd.Close()
		_ = os.RemoveAll(dir) // what is left lies in the system's temporary folder
	}, nil
}

// submit stores the job's spec.
func (r Run) submit(ctx context.Context, store *etcdstore.Store) error {
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Spec)
	if err != nil {
		return fmt.Errorf("the job's spec: %w", err)
	}
	_, created, err := store.PutSpec(ctx, spec)
	if err != nil {
		return err
	}
	if !created {
		return app.Usagef("job %q is running already at this etcd: wait for its end, or choose "+
			"another name with --job", r.Spec.Job)
	}
	return nil
}

// supervise starts the coordinator and the workers, and watches until the job has ended.
func (r Run) supervise(
	ctx context.Context, where meet.Config, store *etcdstore.Store,
) (outcome telemetry.Done, err error) {
	// The processes outlive ctx, which only asks them to stop.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	led := make(chan error, 1)
	go func() { led <- coordinator.Run(life, where) }()
	workers, err := StartWorkers(int(r.Spec.Workers), r.workerCommand(where), r.workerLog)
	if err != nil {
		end()
		return outcome, errors.Join(err, <-led)
	}
	client, err := rpc.NewClient(func(ctx context.Context) (string, error) {
		leader, err := store.Leader(ctx)
		return leader.Address, err
	}, rpc.ClientConfig{Log: r.retryLog(where.Log)})
	if err != nil {
		end()
		return outcome, errors.Join(err, <-led)
	}
	unhook := context.AfterFunc(ctx, func() { r.stop(life, client, end) })
	defer unhook()
	watched := make(chan error, 1)
	go func() {
		watched <- client.Watch(life, func(e *rondov1.Event) error {
			return r.shown(life, e, &outcome)
		})
	}()
	var watchErr, ledErr error
	select {
	case watchErr = <-watched:
		if watchErr != nil {
			end()
		}
		ledErr = <-led
	case ledErr = <-led: // it has told its watchers, or nobody was there to be told
		end()
		watchErr = <-watched
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDelay)
	defer cancel()
	waitErr := workers.Wait(grace)
	return outcome, firstOf(ledErr, watchErr, waitErr)
}

// shown passes an event on, and keeps the job's end.
func (r Run) shown(ctx context.Context, e *rondov1.Event, outcome *telemetry.Done) error {
	if e.GetFailure() != nil {
		return nil // the coordinator returns it as an error
	}
	shown, err := events.Telemetry(e)
	if err != nil {
		return err
	}
	if done, ok := shown.(telemetry.Done); ok {
		*outcome = done
	}
	return r.Show(ctx, shown)
}

// stop asks the job to stop, and ends everything if it does not in time.
func (r Run) stop(life context.Context, client *rpc.Client, end func()) {
	r.Log("stopping after this step; once more ends at once")
	limited, cancel := context.WithTimeout(life, stopTimeout)
	defer cancel()
	if err := client.Stop(limited, "interrupted"); err != nil && life.Err() == nil {
		r.Log(fmt.Sprintf("the job cannot be asked to stop: %v", err))
		end()
		return
	}
	<-limited.Done()
	if life.Err() == nil {
		r.Log(fmt.Sprintf("the job did not stop within %v", stopTimeout))
		end()
	}
}

func (r Run) workerCommand(where meet.Config) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	argv := []string{self, "worker", "--supervised", "--etcd", strings.Join(where.Etcd, ","),
		"--job", where.Job}
	if r.Verbose {
		argv = append(argv, "--verbose")
	}
	return argv
}

func (r Run) workerLog(worker int, line string) {
	r.Log(fmt.Sprintf("worker %d: %s", worker, line))
}

func (r Run) logger() *slog.Logger {
	level := slog.LevelWarn
	if r.Verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(lineWriter(r.Log), &slog.HandlerOptions{Level: level}))
}

// retryLog is the log of what is tried again, which is told only when it is asked for: until a
// coordinator is elected, trying again is what is expected.
func (r Run) retryLog(log *slog.Logger) *slog.Logger {
	if r.Verbose {
		return log
	}
	return nil
}

// lineWriter passes what is written on, without the line's end.
type lineWriter func(string)

func (w lineWriter) Write(p []byte) (int, error) {
	w(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// firstOf returns the first error: the job's own reason goes before what followed from it.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
