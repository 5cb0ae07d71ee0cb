package worker

import (
	"context"
	"errors"
	"fmt"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/checkpoint"
	"rondo/cluster"
	"rondo/compute"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// seat is a worker's place in the rings of one plan.
type seat struct {
	*worker
	plan  cluster.Plan
	rank  cluster.Rank
	ring  *allreduce.Ring // of all ranks
	tiers *tiers          // nil: gradients are not summed by hosts
}

// processesHere returns the number of the plan's workers that share this machine's cores.
func (s *seat) processesHere() int {
	if s.alone {
		return 1
	}
	n := 0
	for _, m := range s.plan.Members {
		if m.Host == s.member.Host {
			n++
		}
	}
	return n
}

func (s *seat) sayLeaving(ctx context.Context) {
	s.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Leaving{Leaving: &rondov1.LeavingEvent{
		Id: s.member.ID, Generation: uint64(s.plan.Generation)}}})
}

// failed turns an error into this worker's own failure. It reports the failure before the others
// see this worker leave.
func (s *seat) failed(err error) error {
	var nonfinite *train.NonfiniteError
	var lost *lostStateError
	var apart *grpclink.TransportError
	var refused *groupError
	lacks, err := s.lack(err)
	failure := &ringError{generation: s.plan.Generation, err: err,
		fatal: errors.As(err, &nonfinite) || errors.As(err, &lost) ||
			errors.As(err, &apart) && s.fromScratch() ||
			errors.As(err, &refused) && s.plan.Rings <= 1 || // the job is set up wrongly
			lacks && len(s.plan.Members) == 1 && s.fromScratch()} // no other worker can go on
	s.reportFailure(context.Background(), failure) // reportFailure bounds its wait itself
	return failure
}

// fromScratch reports whether the job has nothing to lose yet: this is its first ring, and it does
// not continue from a checkpoint.
func (s *seat) fromScratch() bool {
	none := !jobspec.KeepsModel(s.spec) || s.spec.Resume == "never" ||
		s.engine != nil && s.engine.scratch
	return none && s.plan.Rings <= 1 && s.step() == 0
}

// othersMayRestore reports whether another worker of the ring may find the checkpoint that this one
// could not read for long. At the job's start the flags are more likely at fault, and damage is the
// same for all.
func (s *seat) othersMayRestore(err error) bool {
	var damage *checkpoint.DamageError
	return s.plan.Rings > 1 && len(s.plan.Members) > 1 && !errors.As(err, &damage)
}

// lack adds advice on what would fit to a GPU's MemoryError.
func (s *seat) lack(err error) (lacks bool, _ error) {
	var lack *compute.MemoryError
	if !errors.As(err, &lack) {
		return false, err
	}
	lanes := int(s.plan.LaneEnds[s.rank])
	if s.rank > 0 {
		lanes -= int(s.plan.LaneEnds[s.rank-1])
	}
	on, sizes := s.device.(compute.Sizer) // a GPU; nil is none
	if !sizes {
		return true, err
	}
	advice := job.AdviseOnGPU(s.spec, on, s.data.Extent(), job.Part{Lanes: lanes,
		Workers: len(s.plan.Members)}, job.Room(s.device, lack))
	return true, fmt.Errorf("%s: %w%s", s.device.Name(), err, advice)
}

// reportSuspect reports that a rank of this ring should be evicted, and why.
func (s *seat) reportSuspect(ctx context.Context, rank int, why *rondov1.SuspectEvent) {
	why.Id, why.Generation, why.Rank = s.member.ID, uint64(s.plan.Generation), int64(rank)
	s.reportEvent(ctx, &rondov1.Event{Kind: &rondov1.Event_Suspect{Suspect: why}})
}
