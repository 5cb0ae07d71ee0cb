// Package agree lets the ranks of a new ring agree on a state. They elect the state that all go on
// from, copy it to the ranks that lack it, deal the lanes' states, and restore or replay those that
// no rank has. Between two steps a roll call compares their states and their speed. Read join.go
// first.
//
// The package needs a gather over the ranks, the tensors and the lanes' states. The rest comes
// through the interfaces State, Shards and Replayer. It knows no networks, gradients and links.
//
// Letters: G lanes in the global batch, N ranks. Steps are numbers of completed steps. A generation
// numbers the rings of a job.
//
// Of this module it may import compute alone; its tests also compute/cpu.
package agree
