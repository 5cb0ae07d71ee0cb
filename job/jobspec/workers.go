package jobspec

import (
	"strings"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/rehearsal"
)

// MaxWorkers is the most workers in the ring.
func MaxWorkers(spec *rondov1.JobSpec) int64 {
	if spec.MaxWorkers == 0 {
		return spec.Workers
	}
	return spec.MaxWorkers
}

func validateWorkers(spec *rondov1.JobSpec) error {
	if spec.MinWorkers > spec.Workers {
		return usagef("--min-workers %d is above --workers %d, with which the job starts",
			spec.MinWorkers, spec.Workers)
	}
	if MaxWorkers(spec) < spec.Workers {
		return usagef("--max-workers %d is below --workers %d, with which the job starts: raise "+
			"it, or give 0 for the same", spec.MaxWorkers, spec.Workers)
	}
	for _, limit := range []struct {
		flag  string
		value int64
	}{{"workers", spec.Workers}, {"max-workers", spec.MaxWorkers}} {
		if spec.Batch < limit.value {
			return usagef("--batch %d is smaller than --%s %d: each worker needs at least "+
				"one lane of the batch", spec.Batch, limit.flag, limit.value)
		}
	}
	if spec.Link != "auto" && (spec.IntraHost == "grpc" || spec.IntraHost == "shm") {
		return usagef("--intra-host %s and --link %s both set the links: leave --intra-host "+
			"out", spec.IntraHost, spec.Link)
	}
	if factor := spec.EvictStragglers; factor != 0 && factor <= 1 {
		return usagef("--evict-stragglers %g would evict workers that are as fast as the others: "+
			"give more than 1, such as 3, or 0 to evict none", factor)
	}
	if spec.EvictStragglers != 0 && spec.CheckEvery == 0 {
		return usagef("--evict-stragglers needs --check-every above 0: these checks find late " +
			"workers")
	}
	return nil
}

// validateRehearsal checks that every ordered fault could happen.
func validateRehearsal(spec *rondov1.JobSpec) error {
	if strings.Contains(spec.AuditDir, "://") {
		return usagef("--audit-dir %s: logs are appended to, so this must be a local folder",
			spec.AuditDir)
	}
	if strings.Contains(spec.Trace, "://") {
		return usagef("--trace %s: traces grow, so this must be a local folder", spec.Trace)
	}
	plan, err := rehearsal.Parse(spec.Inject)
	if err != nil {
		return usagef("--inject: %v", err)
	}
	most := MaxWorkers(spec)
	for _, r := range plan {
		if int64(r.Rank) >= most {
			return usagef("--inject: \"%v\": there is no such rank: %d workers at most have "+
				"ranks from 0 to %d", r, most, most-1)
		}
		if spec.Steps > 0 && r.From > spec.Steps {
			return usagef("--inject: \"%v\": there is no such step: --steps is %d", r, spec.Steps)
		}
		if passes := max(1, spec.Accumulate) * max(1, LaneGroups(spec)); int64(r.Pass) > passes {
			return usagef("--inject: \"%v\": there is no such pass: a step has %d on one worker, "+
				"one for each segment of --accumulate and for each lane group", r, passes)
		}
		if most == 1 && r.Messages() {
			return usagef("--inject: \"%v\": one worker alone sends no messages: give --workers "+
				"at least 2", r)
		}
	}
	return nil
}
