package jobspec

import (
	"fmt"

	rondov1 "rondo/proto/rondo/v1"
)

// Canonical reports whether the order of gradient sums is independent of the number of workers.
func Canonical(spec *rondov1.JobSpec) bool { return spec.Reduce == "canonical" }

// defaultLaneGroups is the most lane groups if --lane-groups is 0.
const defaultLaneGroups = 8

// LaneGroups is the number of lane groups in a job's batch; 0: no groups. It does not depend on the
// number of workers, so that results do not either.
func LaneGroups(spec *rondov1.JobSpec) int64 {
	if !Canonical(spec) && spec.ClipScope != "group" {
		return 0
	}
	if spec.LaneGroups > 0 {
		return spec.LaneGroups
	}
	groups := min(spec.Batch, defaultLaneGroups)
	for spec.Batch%groups != 0 {
		groups--
	}
	return groups
}

func validateReduction(spec *rondov1.JobSpec) error {
	groups := LaneGroups(spec)
	if spec.LaneGroups > 0 && groups == 0 {
		return usagef("--lane-groups %d is for --reduce canonical and --clip-scope group: give "+
			"one of them, or leave it out", spec.LaneGroups)
	}
	if groups > 0 && spec.Batch%groups != 0 {
		return usagef("--lane-groups %d must divide --batch %d: all groups have the same number "+
			"of lanes", groups, spec.Batch)
	}
	if most := MaxWorkers(spec); groups > 0 && most > groups {
		return usagef("%d workers cannot share %d groups of lanes: each needs at least one: give "+
			"--lane-groups at least %d, which must divide --batch %d, or fewer workers", most,
			groups, most, spec.Batch)
	}
	if !Canonical(spec) {
		return nil
	}
	if spec.ClipScope == "worker" && spec.Clip > 0 {
		return usagef("--reduce canonical gives the same weights on any number of workers, and " +
			"--clip-scope worker clips by worker: give --clip-scope group, or global")
	}
	if !Exact(spec) || spec.SparseRows == "always" {
		return usagef("--reduce canonical adds up whole gradients in float32: leave out --wire, " +
			"--compress and --sparse-rows always")
	}
	if spec.Topology == "hierarchical" {
		return usagef("--reduce canonical adds up in one order around one ring, and --topology " +
			"hierarchical in another: give --topology auto or flat")
	}
	if spec.IntraHost == "nccl" {
		return usagef("--intra-host nccl adds gradients in its own order, which " +
			"--reduce canonical does not allow: give --intra-host auto, shm or grpc")
	}
	return nil
}

// validateBuckets refuses --bucket-bytes where no sum overlaps with backward.
func validateBuckets(spec *rondov1.JobSpec) error {
	if spec.BucketBytes == 0 {
		return nil
	}
	why := ""
	switch {
	case spec.SyncEvery > 1:
		why = fmt.Sprintf("--sync-every %d sums no gradient", spec.SyncEvery)
	case Canonical(spec):
		why = "--reduce canonical sums whole gradients"
	case spec.ShardOptimizer:
		why = "--shard-optimizer sums all of it at once"
	case spec.Clip > 0 && spec.ClipScope != "global":
		why = fmt.Sprintf("--clip-scope %s needs the norm of the whole gradient first (global, or "+
			"--clip 0, does not)", spec.ClipScope)
	case spec.Compress != "none":
		why = fmt.Sprintf("--compress %s takes the whole gradient", spec.Compress)
	default:
		return nil
	}
	return usagef("--bucket-bytes %d is for sums that begin during the backward pass, and %s: "+
		"leave it out", spec.BucketBytes, why)
}
