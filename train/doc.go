// Package train is the step loop of one rank: read, forward and backward, clip, sum, update,
// commit, and at intervals evaluate, save and sample. Read step.go first, then update.go.
//
// It knows mathematics: optimizers, learning-rate schedules, clipping, the loss over the global
// batch. Room train/agree knows how the ranks of a new ring agree on where to go on, and give each
// other what they lack: read agree/join.go third. What it needs from outside it asks for through
// small interfaces: Task (a network and what it reads), Sum (adds up
// gradients over the ranks), Peers (all else that ranks tell each other), Saver (keeps snapshots),
// Observer (hears of everything), Ledger (is told what was read) and Rehearsal (brings faults
// about). It does not know what a corpus, a link, a cluster or a file is, starts no process and
// opens nothing.
//
// Letters: G lanes in the global batch, B of them on this rank, T tokens of a lane in a step, N
// ranks. Steps count from 0 as an index, as batches are read, and from 1 as a number of completed
// steps, as reports, snapshots and Progress have them. Losses are in nats.
//
// Of this module it may import compute and train/agree alone.
package train
