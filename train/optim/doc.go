// Package optim is the arithmetic of an update: the optimizers and their slots, the learning rate
// of a step, clipping, and the outer rules of local SGD. Each is a value that flags fill in and
// Validate checks. Its methods are pure functions: of the step, the progress and the share of the
// targets they return the arguments that the device computes with (compute.Update, compute.Clip).
//
// It knows no tasks, ranks and rings. Of this module it may import compute alone.
package optim
