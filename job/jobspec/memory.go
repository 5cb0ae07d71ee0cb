package jobspec

import (
	"cmp"
	"slices"
	"strings"

	"rondo/compute"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// validateMemory checks what lengthens a network's memory.
func validateMemory(spec *rondov1.JobSpec) error {
	if spec.SkipThroughTime == 1 {
		return usagef("--skip-through-time 1: every layer reads its last output: give 2 or more")
	}
	if spec.SkipThroughTime > 0 && spec.Embed == 0 && spec.Task != task.Regress {
		return usagef("--skip-through-time %d reads the embedding: set --embed, for example "+
			"--embed %d", spec.SkipThroughTime, spec.Hidden)
	}
	if spec.HardAttention == 1 {
		return usagef("--hard-attention 1: each way to read a story is compared with others: " +
			"give 2 or more")
	}
	if isBag(spec) && spec.Embed > 0 && spec.Hidden != spec.Embed {
		return usagef("--hidden %d: the nodes of --tree-cell bag are as wide as --embed, %d: "+
			"leave --hidden out", spec.Hidden, spec.Embed)
	}
	p, err := compute.ParsePeriods(spec.Periods)
	if err != nil {
		return usagef("%v", err)
	}
	switch p = cmp.Or(p, compute.DefaultPeriods()); {
	case p != compute.DefaultPeriods() && spec.Cell != compute.Clockwork.String():
		return usagef("--periods is for --cell %v, and the cell is %s", compute.Clockwork,
			spec.Cell)
	case spec.Cell == compute.Clockwork.String() && p.Groups() > int(spec.Hidden):
		return usagef("--periods %v are %d groups of units, and --hidden is %d", p, p.Groups(),
			spec.Hidden)
	}
	return validateLeak(spec)
}

// validateLeak checks that a leak other than the default's is a cell's or a reservoir's.
func validateLeak(spec *rondov1.JobSpec) error {
	if spec.Leak == compute.DefaultLeak || spec.Task == task.Reservoir {
		return nil
	}
	if can := compute.LeakyCellNames(); !slices.Contains(can, spec.Cell) {
		return usagef("--leak is for --cell %s and --task %s, and the cell is %s",
			strings.Join(can, " or "), task.Reservoir, spec.Cell)
	}
	if spec.Leak == 1 && spec.Cell == compute.LeakyLearned.String() {
		return usagef("--leak 1: a leak that is learned must begin below 1")
	}
	return nil
}
