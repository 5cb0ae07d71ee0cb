// Package allreduce sums slices of float32 over the workers of a ring, and gathers them.
//
// It holds the ring's schedule, the reduction, and the interfaces of a link to a neighbour
// ([Predecessor], [Successor]). It knows nothing of gRPC, of the cluster or of the model: who is
// in the ring, and over what the chunks travel, is decided elsewhere. It imports nothing of ours.
//
// # The schedule
//
// With N ranks a buffer is cut into N segments. In ring step k (from 0) rank r sends segment
// (r-1-k) mod N to its successor and receives segment (r-2-k) mod N from its predecessor: what it
// receives in step k is what it sends in step k+1. In the first N-1 steps (reduce-scatter) it
// adds what comes to its own; after them it holds the sum of segment r. In the next N-1 steps
// (all-gather) it keeps what comes. A reduce-scatter by itself is the first half alone, an
// all-gather by itself the second, both over segments of the caller's lengths. This is the ring
// of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
// (2009).
//
// Cost for B bytes on N ranks, per rank and direction:
//
//	all-reduce       2(N-1) steps   2(N-1)/N * B bytes
//	reduce-scatter    (N-1) steps      B less the segment of its own
//	all-gather        (N-1) steps      B less the segment of the successor
//
// Segments are cut into chunks, one message each, and there is no barrier between steps: a chunk
// is sent on as soon as it is reduced. Each segment is summed in ring order by one chain of
// ranks, and its sum is copied, so all ranks end with the same bits.
//
// Collectives are queued ([Ring.Start]). The half of a ring that sends and the half that receives
// go through the queue each as far as it can, so that no collective waits for the one before it:
// the first chunks of one bucket flow while the last ones of another are still on the way.
//
// # Fewer bytes
//
// Numbers may travel rounded to 16 bits ([Sum.Element]), Q(x) for a float32 x. In the reduce-
// scatter rank r receives a partial sum of a segment, adds it to its own floats x_r in float32,
// and sends the rounded sum on; the rank that has the whole sum rounds it too, keeps what it has
// rounded and sends that. So along the chain of ranks 1..N of a segment
//
//	s_1 = Q(x_1),  s_r = Q(s_{r-1} + x_r),  and every rank ends with s_N
//
// as the same bits, which a rank passes on as they came. In the reduce-scatter x_r is read once,
// and the 16 bits of s_r take half of its place in the buffer; the sum takes all of it. The error
// is N roundings' at most. With error feedback (Karimireddy et al., "Error feedback fixes SignSGD
// and other gradient compression schemes", 2019) rank r adds what it has withheld so far, e_r, and
// withholds the rest:
//
//	y_r = s_{r-1} + x_r + e_r,  s_r = Q(y_r),  e_r <- y_r - s_r
//
// Each rank rounds each number once in a sum, its own segment as the last of the chain and every
// other on the way, so that one [Sum.Residual] of the buffer's length holds all that it withholds.
// What the ranks have summed over many steps, plus what they all withhold, is the exact sum but for
// float32's own rounding.
//
// # The same bits on any number of ranks
//
// What a ring's sum is in its last places depends on how many ranks there are. [Ring.AllReduceTree]
// sums the leaves of one binary tree instead, of which each rank has some, in the ring's steps and
// with more bytes. Addition commutes, so that only the tree's shape counts, and that is fixed.
//
// # The carry
//
// Ahead of an all-reduce each rank may hand its successor floats of its own ([Carry]), on the same
// ordered stream. A segment's sum has passed through every rank but the one where it began, and
// each of them received its carry before. So whoever has the sums of two segments knows that every
// rank's carry is complete, at the cost of the carry's bytes and of no wait. By the same reason
// every collective that was started before is complete on every rank.
//
// # Who is dead, and who is late
//
// Each rank sends its successor heartbeats on the stream while it has nothing else to send, and
// its predecessor signs of life against it. A neighbour of which nothing comes for
// [Config.ChunkTimeout] is dead, in a collective or between two. One that lives but keeps a
// collective waiting for [Config.StepTimeout] is stuck. Both are a [PeerError] of the rank that
// saw it, and hearsay ([AbortError]) to all others. A process that stood still itself finds all
// others silent when it wakes; its waits count from then on.
package allreduce
