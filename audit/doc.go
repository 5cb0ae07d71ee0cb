// Package audit records what each worker reads, and which parameters each step leaves. From the
// records it proves that a job read every segment of its text exactly once, despite failures, and
// that all workers computed each step from the same parameters.
//
// A worker appends to DIR/WORKER.jsonl, one JSON object per line:
//
//	{"ring":{"run":R,"generation":7,"from":41,"digest":D,"world":3,"rank":1,"lanes":32,
//	         "bptt":35,"tokens":N,"seed":1,"sampling":"sequential"}}
//	{"read":{"generation":7,"step":42,"first":11,"offsets":[...],"crc":305419896}}
//	{"commit":{"generation":7,"step":42,"digest":E}}
//	{"commit":{"generation":7,"step":43,"digest":F,"skipped":true,"nonfinite":1,"rank":2}}
//
// A ring line says that the worker has joined the ring of a generation. The ring starts after step
// "from", with parameters of that digest. A digest is a function of the parameters and of the
// number of completed steps, or rounds, so equal states have equal digests, whoever computes them.
// "replayed", if it is there, is the number of segments that were read again to compute lost states
// of lanes. A second ring line of the same generation says that all workers start again together,
// from a checkpoint or from their current state.
//
// A read line says that the worker is about to take a step. "first" is its first lane, and
// "offsets" has one entry per lane: the position in the text of the lane's segment. A worker that
// computes its lanes in groups writes one line per group. "crc" is the CRC-32C of the inputs
// [T, count] as little-endian int32. If a step reads several segments per lane, the ring line has
// their number as "accumulate", and each read line the index of its segment, from 0, as "segment".
// With "sampling" "varied" a step's segments have a length drawn for it, T, in the place of "bptt".
//
// Where lanes read examples instead of a text, "sampling" is "examples", "tokens" is the number of
// examples, "bptt" is 0, and the offsets are examples' numbers, or -1 for a lane that reads none.
//
// A commit line says that the worker has updated its parameters by a step, and has their digest.
// Steps count from 1. A skipped step did not change them: on "nonfinite" ranks the loss or the
// gradient was not finite. If there was one such rank, "rank" is its number. If there was none, the
// sum of all ranks was not finite. With "random":true a random step was taken in its place, and
// changed the parameters.
//
// A worker writes the read line before it adds its gradient to the sum, and no worker can complete
// the sum without all parts. So one worker's commit line implies the read lines of all. Each line
// is one write(2): it survives the death of the process, but not a loss of power.
//
// # What is proved
//
// A run of the job is a chain of rings. When a ring starts after step F, all steps beyond F of
// earlier rings are discarded and repeated. Prove follows the chain backwards from the last ring to
// the first. Each ring counts from its own start up to the start of its successor in the chain, and
// it must have committed all those steps.
//
// A ring does not count if it never reached its successor's start, or had other parameters there:
// for example, its workers all died, and a worker outside of it had kept an older state. If several
// rings had those parameters, the last one counts. Prove fails if none had.
//
// A checkpoint must have the digest of the ring that counts at its step.
//
// Then Prove reads the logs again and checks every committed step, whether it counts or not,
// against the sampler: each lane must be read once, at its position. Examples are checked by their
// numbers: of the steps that count, no epoch may read one twice, nor leave one out.
//
// After each step that counts, more than half of the ring's workers must have the same digest. A
// worker with another one may take no part in the next step: a roll call may have found it and put
// it out. If it does take part, that step was computed from wrong parameters, and Prove fails.
//
// A digest reads a part of the parameters, which changes from step to step (train.Trainer.Digest).
// An update by another gradient changes nearly all of them, so it shows at once. A single wrong bit
// shows when its part is read: within 34 steps, or rounds, if there are up to 2^19 parameters, and
// later if there are more.
//
// One wrong bit may never show: that of the worker whose parameters the others copy when a ring
// starts, outside of the part that is read at "from". All workers have it from then on, so their
// digests agree. The roll calls of the training read all parameters, but they too compare the
// workers with each other. They find such a bit only before it is copied.
//
// The logs cannot show a history that was cut off at its end (the last lines of all logs, or the
// only log of the last rings), nor steps done before logging began.
//
// This package neither reads text nor decides anything about training. It imports corpus, for the
// sampler, and nothing else of this module.
package audit
