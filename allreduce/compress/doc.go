// Package compress sums gradients over the ranks of a ring with fewer bytes than float32 takes.
//
// It knows slices of floats, where the tensors in them lie, and a [Ring]. It knows nothing of
// links, models or devices, and imports nothing of ours. A [Summer] goes one of three ways:
//
//   - dense: all numbers travel, rounded by the ring if it rounds; of a tensor that is looked up
//     by token, only what some rank has looked up ([Lookup]);
//   - top-k: each rank sends the k numbers of each tensor that are the largest in magnitude
//     (Aji and Heafield, arXiv:1704.05021), which are gathered and added up; they may be of its
//     momentum instead of its gradient ([Momentum]);
//   - PowerSGD: a matrix travels as two thin factors (Vogels et al., arXiv:1905.13727).
//
// What a rank does not send in a step it keeps, and adds to its next gradient: error feedback
// (Seide et al. 2014; Stich et al., arXiv:1809.07854; Karimireddy et al., arXiv:1901.09847). So
// what was sent and what is kept always add up to the gradients, but for rounding.
//
// # Bytes
//
// What a rank sends in a step, of n floats on N ranks, where an all-reduce of b bytes sends
// 2(N-1)/N b, and S is the share of numbers that top-k keeps:
//
//	dense               2(N-1)/N * 4n, or 2n with a ring of 16 bits
//	top-k               (N-1) * 8 S n
//	PowerSGD, rank r    2(N-1)/N * 4r(rows + columns) of each matrix, and 4 of each other number
//	a lookup of W wide  2(N-1)/N * 4W * tokens that were looked up, and (N-1) * V/8 to tell which
//
// All ranks end with the same bits: what they compute from a sum they compute by the same
// operations in the same order, each rounded, whatever their processors.
//
// # What survives what
//
// What a Summer keeps, momentum included, belongs to the last step that was committed; what the
// step in hand would leave is apart from it until the step's commit. So a step that is done again
// begins with what it began with. A rank keeps its own through changes of the ring. What a lost
// rank had kept is lost, and so is that of a rank whose state is replaced by another's or a
// checkpoint's.
package compress
