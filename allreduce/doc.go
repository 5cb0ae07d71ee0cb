// Package allreduce sums and gathers slices of float32 over the ranks of a ring.
//
// It holds the ring's schedule, the reduction, and the interfaces of a link to a neighbour
// ([Predecessor], [Successor]). Its callers decide which ranks are in the ring and which links
// connect them: it knows nothing of gRPC, the cluster or the model. It imports no other package of
// Rondo.
//
// # The schedule
//
// With N ranks a buffer is cut into N segments. In ring step k (from 0) rank r sends segment
// (r-1-k) mod N to its successor and receives segment (r-2-k) mod N from its predecessor. So the
// segment received in step k is sent in step k+1. In the first N-1 steps (reduce-scatter) a rank
// adds what it receives to its own floats; after them it holds the sum of segment r. In the next
// N-1 steps (all-gather) it stores what it receives. A reduce-scatter by itself is the first half,
// an all-gather by itself the second; the caller sets their segments' lengths. This is the ring of
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
// (2009).
//
// Cost for B bytes on N ranks, per rank and direction:
//
//	all-reduce       2(N-1) steps   2(N-1)/N * B bytes
//	reduce-scatter    (N-1) steps      B less this rank's segment
//	all-gather        (N-1) steps      B less the successor's segment
//
// Segments are cut into chunks, one message each. There is no barrier between steps: a chunk is
// sent on as soon as it is reduced. One chain of ranks sums each segment, in ring order, and the
// others copy the sum, so all ranks end with the same bits.
//
// Collectives are queued ([Ring.Start]). The sending and the receiving half of a ring each work
// through the queue independently, so no collective waits for the one before it: the first chunks
// of one bucket flow while the last chunks of another are in flight.
//
// # Fewer bytes
//
// Numbers may travel rounded to 16 bits ([Sum.Element]): Q(x) for a float32 x. In the
// reduce-scatter rank r adds the partial sum that it receives to its own floats x_r in float32,
// rounds the result and sends it on. The rank that completes the sum rounds it too, keeps the
// rounded sum and sends it. So along the chain of ranks 1..N of a segment
//
//	s_1 = Q(x_1),  s_r = Q(s_{r-1} + x_r),  and every rank ends with s_N
//
// with the same bits, because the all-gather forwards them unchanged. The reduce-scatter reads x_r
// once and stores the 16 bits of s_r in the first half of its memory; a complete sum takes all of
// it. The error is at most that of N roundings. With error feedback (Karimireddy et al., "Error
// feedback fixes SignSGD and other gradient compression schemes", 2019) rank r adds its withheld
// error e_r and withholds the new one:
//
//	y_r = s_{r-1} + x_r + e_r,  s_r = Q(y_r),  e_r <- y_r - s_r
//
// Each rank rounds each number once in a sum: its own segment as the last of the chain, the others
// on their way. So one [Sum.Residual] of the buffer's length holds all errors that a rank
// withholds. The sums of many steps plus all withheld errors equal the exact sum, up to float32's
// own rounding.
//
// # The same bits on any number of ranks
//
// The last bits of a ring's sum depend on the number of ranks. [Ring.AllReduceTree] instead sums
// the leaves of one binary tree, of which each rank has some. It takes the same ring steps and
// sends more bytes. Addition commutes, so the result depends on the tree's shape only, and that is
// fixed.
//
// # The carry
//
// Beside an all-reduce each rank may send its successors floats of its own ([Carry]), on the same
// ordered stream: in hop h those of the rank h places before it, ahead of ring step h. A rank that
// has the sum has received ring step 2N-3, its predecessor step 2N-4, and so on to step N-2 of its
// successor. So every rank has received the hops ahead of step N-2, if all steps have chunks. In a
// sum of fewer than N floats all hops go ahead of step 0. There a segment's sum has passed through
// every rank but the one where it began, and each of them received its carry before; so a rank that
// has the sums of two segments knows that every rank's carry is complete. This costs the carry's
// bytes in each hop. By the same arguments every collective that was started before is complete on
// every rank.
//
// # Dead and stuck ranks
//
// Each rank sends its successor heartbeats while it has nothing else to send, and its predecessor
// beats in the other direction. A neighbour that is silent for [Config.ChunkTimeout] is dead, in a
// collective or between two. One that is alive but keeps a collective waiting for
// [Config.StepTimeout] is stuck. The rank that observes either gets a [PeerError]; all others get
// an [AbortError]. A process that was stopped itself finds all others silent when it wakes, so its
// waits count from then on.
package allreduce
