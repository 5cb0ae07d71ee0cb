// Package audit writes down what each worker reads, and proves from it that a job read every
// segment of its text exactly once, whatever failed meanwhile.
//
// A worker appends to DIR/WORKER.jsonl, one JSON object a line:
//
//	{"ring":{"run":R,"generation":7,"from":41,"committed":6,"world":3,"lanes":32,
//	         "bptt":35,"tokens":N,"seed":1,"sampling":"sequential"}}
//	{"read":{"generation":7,"step":42,"first":11,"offsets":[...],"crc":305419896}}
//	{"commit":{"generation":7,"step":42}}
//
// A ring line says that the worker is in the ring of a generation, which has done the first 41
// steps; committed is the generation in which the state that it starts from was committed, its own
// where that state is from a checkpoint or from scratch, and 0 or missing if it is not known.
// Another one of the same generation follows where all its workers begin anew together, from
// a checkpoint or where they are. A read line says that it is about to take step 42 with the lanes
// from 11 on, each lane's segment from that token of the text; where a worker computes its lanes in
// groups it writes a line of each. crc is CRC-32C of those inputs
// [T, count], as little-endian int32. A commit line says that it has updated its parameters by
// step 42. Steps count from 1. Where a step reads several segments of each lane, the ring line has
// their number as "accumulate", and a read line which of them it is of, from 0, as "segment".
//
// The read line is written before the worker gives its gradient to the sum, and nobody can
// complete a sum without everybody's part. So a commit line of anybody implies the read lines of
// all. Each line is one write(2): what a process has written is kept when it is killed, but not
// when the machine loses power.
//
// # What is proved
//
// A run of the job is a chain of rings. When a ring starts from step F, whatever earlier rings did
// beyond F is thrown away and done again. Prove walks that chain backwards from the last ring to
// the first: each ring counts from its own beginning up to where the ring after it in the chain
// begins, which it must have committed. A ring that never got so far adds nothing; nor does one of
// a later generation than that in which the state was committed, whose workers all died, say, while
// one that was not among them kept its state. Of several rings that could have committed a step the
// last counts: a state from a checkpoint, or one whose generation is not known, does not say more.
// Then it reads the logs once more and holds every step that
// anybody committed, counted or not, against the sampler: each lane read once, at its place.
//
// What the log cannot show: a history that was cut off at its end (the last lines of all logs, or
// the only log of the last rings), and steps done before there was a log.
//
// The package does not read text itself, nor decide anything about training. Of ours it imports
// corpus, for the sampler.
package audit
