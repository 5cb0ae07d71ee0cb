package jobspec

import (
	"fmt"

	rondov1 "rondo/proto/rondo/v1"
)

// ShardCopies is the number of workers that keep each part of the optimizer state; 0: all keep all.
func ShardCopies(spec *rondov1.JobSpec) int64 {
	if !spec.ShardOptimizer {
		return 0
	}
	return spec.ShardCopies
}

// ShardsAtRisk reports whether a killed worker's optimizer state is lost: no other worker and no
// checkpoint has it.
func ShardsAtRisk(spec *rondov1.JobSpec) bool {
	saved := KeepsModel(spec) && (spec.CheckpointEvery > 0 || evaluates(spec))
	return ShardCopies(spec) == 1 && !saved && spec.Optimizer != "sgd" && spec.Workers > 1
}

// WholeGradients reports whether gradients need one fp32 ring of all workers: to sum them as a
// tree, or by the workers' ranges.
func WholeGradients(spec *rondov1.JobSpec) bool { return Canonical(spec) || spec.ShardOptimizer }

// validateShards refuses flags that do not sum gradients by ranges around one ring.
func validateShards(spec *rondov1.JobSpec) error {
	if !spec.ShardOptimizer {
		if spec.ShardCopies > 1 {
			return usagef("--shard-copies %d is for --shard-optimizer: give both, or leave it out",
				spec.ShardCopies)
		}
		return nil
	}
	other, instead := "", ""
	switch {
	case Canonical(spec):
		other, instead = "--reduce canonical", "--reduce ring"
	case spec.SyncEvery > 1:
		other, instead = fmt.Sprintf("--sync-every %d", spec.SyncEvery), "--sync-every 1"
	case spec.Compress != "none":
		other, instead = "--compress "+spec.Compress, "--compress none"
	case spec.Wire != "fp32":
		other, instead = "--wire "+spec.Wire, "--wire fp32"
	case spec.SparseRows == "always":
		other, instead = "--sparse-rows always", "--sparse-rows auto"
	case spec.Topology == "hierarchical":
		other, instead = "--topology hierarchical", "--topology auto or flat"
	case spec.IntraHost == "nccl":
		other, instead = "--intra-host nccl", "--intra-host auto, shm or grpc"
	default:
		return nil
	}
	return usagef("%s needs whole gradients, and with --shard-optimizer each worker has the sum "+
		"of its own range only, in fp32 and around one ring: give %s, or leave out "+
		"--shard-optimizer", other, instead)
}
