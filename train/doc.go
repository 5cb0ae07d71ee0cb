// Package train is the step loop of one rank: read, forward and backward, clip, sum, update,
// commit, and at intervals evaluate, save and sample. Read step.go first, then update.go.
//
// Beside it lie three rooms. Package train/optim holds the formulas: optimizers, learning rates,
// clipping. Package train/agree holds what ranks do when a ring forms: agree on a state and copy it
// to the ranks that lack it; read agree/join.go third. Package train/exact adds numbers over ranks
// to the same bits in any order.
//
// Everything else comes through small interfaces: Task (a network and its data), Sum (sums
// gradients over the ranks), Slots (the optimizer's values per parameter), Peers (the ranks' other
// collectives), Saver (stores snapshots), Observer (receives reports), Ledger (records committed
// steps) and Rehearsal (injects faults). The package does not know corpora, links, clusters or
// files. It starts no process and opens nothing.
//
// Letters: G lanes in the global batch, B of them on this rank, T tokens of a lane in a step, N
// ranks. A step index counts from 0 and selects a batch. A step number counts completed steps, from
// 1; reports, snapshots and Progress use it. Losses are in nats.
//
// Of this module it may import only compute and the three rooms.
package train
