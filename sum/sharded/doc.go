// Package sharded divides the optimizer's slots over the ranks of a ring: the first stage of ZeRO
// (Rajbhandari et al. 2020, arXiv:1910.02054). [Slots] is one rank's part, for the trainer's life.
// [Sum] sums and updates in one ring.
//
// Each rank owns a range of the parameters and keeps the slots of that range. A step's gradient is
// reduce-scattered, so that each rank has the sum of its own range. It updates the parameters of
// that range, and all ranks gather the parameters. That is as many bytes on the wire as an
// all-reduce. The new parameters are gathered in the gradient's memory. The old ones stay until the
// step is committed.
//
// With two copies each rank also keeps the slots of its predecessor's range, so that the loss of
// one rank loses no slots. Slots then change only when the step is committed. Before that, a rank
// logs the summed gradient of the ranges that it keeps. A rank that missed the commit applies its
// log when the next ring begins.
//
// With one copy there is no log: a rank changes its slots before it knows whether the step is
// committed. If the ring breaks between the two, or a rank is lost, the ranks go back to a
// checkpoint.
//
// The package opens no links and does not decide which ranks form a ring. Of this module it may
// import compute and train/agree.
package sharded
