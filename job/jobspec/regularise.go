package jobspec

import (
	"rondo/compute"
	rondov1 "rondo/proto/rondo/v1"
)

// validateRegularisers checks the flags of dropout, weight drop and L2 penalties.
func validateRegularisers(spec *rondov1.JobSpec) error {
	if spec.DropoutLocked && spec.Dropout == 0 && spec.DropoutInput == 0 &&
		spec.DropoutOutput <= 0 {
		return usagef("--dropout-locked is for a --dropout, --dropout-input or --dropout-output " +
			"above 0: give one")
	}
	if spec.DropoutInput > 0 && spec.Embed == 0 {
		return usagef("--dropout-input drops elements of the embedding: set --embed, for example "+
			"--embed %d", spec.Hidden)
	}
	if p := spec.DropoutOutput; p < 0 && p != -1 {
		return usagef("--dropout-output %g is no probability: give 0 to 0.99, or leave it out", p)
	}
	if p := spec.Dropout; spec.Layers == 1 && spec.DropoutOutput >= 0 && p > 0 &&
		p != unresolved().Dropout {
		return usagef("--dropout %g is for layers below the last, which has --dropout-output, and "+
			"--layers 1 has none: leave it out", p)
	}
	if spec.DropoutWords > 0 && spec.Embed == 0 {
		return usagef("--dropout-words drops rows of the embedding: set --embed, for example "+
			"--embed %d", spec.Hidden)
	}
	cell, err := compute.ParseCell(spec.Cell)
	if spec.WeightDrop > 0 && err == nil && cell.HiddenGates() == 0 {
		return usagef("--weight-drop drops recurrent weights, and --cell %s has none: leave it "+
			"out", spec.Cell)
	}
	if (spec.ActivationL2 > 0 || spec.TemporalL2 > 0) && spec.Bidirectional {
		return usagef("--activation-l2 and --temporal-l2 go without --bidirectional: leave it out")
	}
	if spec.TemporalL2 > 0 && (spec.Recompute > 0 || spec.Bptt == 1) {
		return usagef("--temporal-l2 reads the outputs of a whole segment, of at least 2 tokens: " +
			"leave out --recompute, and give a --bptt above 1")
	}
	return nil
}
