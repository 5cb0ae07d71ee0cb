package worker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/checkpoint"
	"rondo/cluster"
	"rondo/cmd/internal/app"
	"rondo/cmd/internal/job"
	"rondo/internal/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// hearsayTimeout is how long a worker whose ring was broken elsewhere waits to hear why.
const hearsayTimeout = 10 * time.Second

// session is a worker's part in the ring of one plan.
type session struct {
	*worker
	plan   cluster.Plan
	rank   cluster.Rank
	data   *job.Data
	ring   *allreduce.Ring
	model  *model.Model
	saver  *saver // nil unless this rank saves
	stored *job.Checkpoints
	found  *checkpoint.Checkpoint // to go on from, as rank 0 found it; nil on the others
}

// train forms the plan's ring, goes on from the checkpoint that --resume asks for, and trains to
// the last step, or until it is asked to stop.
func (w *worker) train(
	ctx context.Context, plan cluster.Plan, data *job.Data, o *orders,
) (err error) {
	rank, ok := plan.Rank(w.id)
	if !ok {
		panic(fmt.Sprintf("worker: %s is not in plan %+v", w.id, plan))
	}
	s := &session{worker: w, plan: plan, rank: rank, data: data}
	device, err := job.OpenDevice(w.spec, s.processesHere())
	if err != nil {
		return err
	}
	defer device.Close()
	config, err := job.ModelConfig(w.spec, data.Corpus.Vocabulary().Len())
	if err != nil {
		return err
	}
	config.GradientTail = train.Tail
	if s.model, err = model.New(config, device); err != nil {
		return err
	}
	defer s.model.Close()
	if s.stored, err = job.OpenCheckpoints(ctx, w.spec, data.Corpus); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stored.Close()) }()
	if rank == 0 { // before the others wait for it in the ring
		if s.found, err = s.stored.Find(ctx, w.spec); err != nil {
			return err
		}
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	defer func() {
		w.tell(ctx, err)
		err = errors.Join(err, s.ring.Close())
	}()
	if rank == 0 && s.stored.Store != nil {
		if s.saver, err = newSaver(s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.saver.close()) }()
	}
	return s.run(ctx, o)
}

// processesHere is how many of the plan's workers share this machine.
func (s *session) processesHere() int {
	n := 0
	for _, m := range s.plan.Members {
		if m.Host == s.member.Host {
			n++
		}
	}
	return n
}

// connect joins the plan's ring.
func (s *session) connect(ctx context.Context) error {
	addresses := make([]string, len(s.plan.Members))
	for i, m := range s.plan.Members {
		addresses[i] = m.Address
	}
	seat := grpclink.Seat{Job: s.spec.Job, Generation: allreduce.Generation(s.plan.Generation),
		Rank: allreduce.Rank(s.rank), World: len(addresses)}
	links, err := grpclink.Connect(ctx, s.links, seat, addresses,
		grpclink.DialConfig{Timeout: s.spec.JoinTimeout.AsDuration()})
	if err != nil {
		return err
	}
	s.ring, err = allreduce.New(allreduce.Config{Rank: seat.Rank, World: seat.World,
		Generation: seat.Generation, ChunkTimeout: s.spec.ChunkTimeout.AsDuration()}, links)
	return err
}

// run trains.
func (s *session) run(ctx context.Context, o *orders) error {
	trainer, err := s.trainer()
	if err != nil {
		return err
	}
	defer trainer.Close()
	step, err := s.resume(ctx, trainer)
	if err != nil {
		return err
	}
	s.announce(ctx, step)
	if total := s.data.Steps(s.spec); step >= total && s.rank == 0 {
		s.notice(ctx, fmt.Sprintf("nothing is left to do: the checkpoint is of step %d, and the "+
			"job has %d; raise --steps or --epochs to train on", step, total))
	}
	o.onStop(trainer.RequestStop)
	result, err := trainer.Run(ctx)
	if err != nil {
		return s.blame(ctx, err)
	}
	return s.reporter.Report(ctx, s.done(result))
}

// announce tells who is in the ring.
func (s *session) announce(ctx context.Context, step int64) {
	s.report(ctx, &rondov1.Event{Kind: &rondov1.Event_Worker{Worker: &rondov1.WorkerEvent{
		Rank: int64(s.rank), Pid: int64(s.member.PID), Id: s.id, Device: s.model.Device().Name(),
		Host: s.member.Host}}})
	if s.rank != 0 {
		return
	}
	s.report(ctx, &rondov1.Event{Kind: &rondov1.Event_Generation{
		Generation: &rondov1.GenerationEvent{Generation: uint64(s.plan.Generation),
			WorldSize: int64(len(s.plan.Members)), Step: step, Reason: s.plan.Reason}}})
}

// report queues an event; a coordinator that does not listen must not stop the training.
func (s *session) report(ctx context.Context, e *rondov1.Event) {
	if err := s.reporter.Report(ctx, e); err != nil {
		s.log.Warn("an event is lost", "error", err)
	}
}

// done is this rank's last event.
func (s *session) done(result train.Result) *rondov1.Event {
	d := &rondov1.DoneEvent{Step: result.Progress.Step, Epoch: result.Progress.Epoch,
		Loss: result.Loss, TokensPerSecond: result.TokensPerSecond, Stopped: result.Stopped,
		NonfiniteSteps: result.Progress.Nonfinite}
	if s.saver != nil {
		d.Checkpoint = s.saver.path()
	}
	return &rondov1.Event{Kind: &rondov1.Event_Done{Done: d}}
}

// lostPeerError is a failure of this worker because a neighbour does not answer.
type lostPeerError struct {
	rank allreduce.Rank
	err  error
}

func (e *lostPeerError) Error() string { return e.err.Error() }
func (e *lostPeerError) Unwrap() error { return e.err }

// blame finds the neighbour that broke the ring, if that is what ended the training. When the
// neighbour only passes on what happened elsewhere, those who saw it have told the coordinator,
// and the job's end is waited for: it has the better reason.
func (s *session) blame(ctx context.Context, err error) error {
	var abort *allreduce.AbortError
	if errors.As(err, &abort) {
		timer := time.NewTimer(hearsayTimeout)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		return err
	}
	var lost *allreduce.PeerError
	if errors.As(err, &lost) {
		return &lostPeerError{rank: lost.Peer.Rank, err: err}
	}
	return err
}

// resume restores the checkpoint that rank 0 found, on all ranks, and returns its step; 0 from
// scratch.
func (s *session) resume(ctx context.Context, trainer *train.Trainer) (int64, error) {
	step, err := s.agree(ctx)
	if err != nil || step == 0 {
		return 0, err
	}
	if s.found == nil {
		if s.found, err = s.stored.Store.Load(ctx, step); err != nil {
			return 0, err
		}
	}
	snapshot, err := readSnapshot(ctx, s.found, trainer.NewSnapshot())
	if err != nil {
		return 0, err
	}
	return step, trainer.Restore(snapshot)
}

// agree holds the ranks' jobs against each other, and gives all of them the step of rank 0's
// checkpoint: no rank goes by what it alone sees. A float32 holds 24 bits, so numbers travel in
// digits.
func (s *session) agree(ctx context.Context) (step int64, err error) {
	const bits, digits, mask = 16, 4, 1<<16 - 1
	own := [2]uint64{identityOf(s.spec, s.data)}
	if s.found != nil {
		own[1] = uint64(s.found.Step)
	}
	const size = len(own) * digits
	all := make([]float32, size*len(s.plan.Members))
	ends := make([]int, len(s.plan.Members))
	for rank := range ends {
		ends[rank] = (rank + 1) * size
	}
	for i := range size {
		all[int(s.rank)*size+i] = float32(own[i/digits] >> (bits * (i % digits)) & mask)
	}
	if len(ends) > 1 {
		if err := s.ring.AllGather(ctx, all, ends); err != nil {
			return 0, s.blame(ctx, fmt.Errorf("agreeing on where to start: %w", err))
		}
	}
	for rank, m := range s.plan.Members {
		var got [len(own)]uint64
		for i := range size {
			got[i/digits] |= uint64(all[rank*size+i]) << (bits * (i % digits))
		}
		if got[0] != own[0] {
			return 0, fmt.Errorf("rank %d (host %s) reads another text than rank %d (host %s): "+
				"give all of them the same --corpus", rank, m.Host, s.rank, s.member.Host)
		}
		if rank == 0 {
			step = int64(got[1])
		}
	}
	return step, nil
}

// identityOf is a fingerprint of the job as this rank has it, its text included.
func identityOf(spec *rondov1.JobSpec, data *job.Data) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, jobspec.Identity(spec, data.Corpus.Fingerprint())) // never fails
	return h.Sum64()
}

// trainer makes the step loop of this rank.
func (s *session) trainer() (*train.Trainer, error) {
	config, err := job.TrainConfig(s.spec, s.data)
	if err != nil {
		return nil, err
	}
	config.Rank, config.LaneEnds = int(s.rank), make([]int, len(s.plan.LaneEnds))
	for i, end := range s.plan.LaneEnds {
		config.LaneEnds[i] = int(end)
	}
	config.HostMemory = true
	config.Now = time.Now
	config.Observer = &observer{session: s}
	config.Save = s.stored.Store != nil
	if s.saver != nil {
		config.Saver = s.saver
	}
	if s.rank == 0 && s.spec.SampleTokens > 0 {
		config.Sample = s.sample
	}
	var reducer train.Reducer
	if len(s.plan.Members) > 1 {
		reducer = s.ring
	}
	t, err := train.New(s.model, s.data.Batches(), reducer, config)
	return t, app.Usage(err)
}

// sample lets the model write; the draws depend on the seed and the step alone. The other ranks
// wait in the ring meanwhile, so it takes half of what they wait at most.
func (s *session) sample(ctx context.Context, step int64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.spec.ChunkTimeout.AsDuration()/2)
	defer cancel()
	return job.Text(ctx, s.model, s.data.Corpus.Vocabulary(), job.Tokenizer(s.spec),
		"--sample-prefix", s.spec.SamplePrefix, int(s.spec.SampleTokens), model.Sampling{
			Temperature: s.spec.SampleTemperature, Greedy: s.spec.SampleTemperature == 0,
			Seed: s.spec.Seed + uint64(step)})
}
