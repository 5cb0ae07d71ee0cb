// Package agree is what ranks do when a ring has formed: they elect the state that all go on from,
// copy it to those that lack it, deal the lanes' states, and restore or replay what nobody has.
// Between two steps they call the roll: they compare digests of their state and their times. Read
// join.go first.
//
// It needs a gather over the ranks, the tensors and the lanes' states. It asks a rank for the rest
// through the interfaces State, Shards and Replayer. It knows nothing of networks, gradients and
// links.
//
// Letters: G lanes in the global batch, N ranks. Steps are numbers of completed steps. A generation
// numbers the rings of a job.
//
// Of this module it may import compute alone; its tests also compute/cpu.
package agree
