// Package compress sums gradients over the ranks of a ring with fewer bytes than float32 takes.
//
// It works on slices of floats, the places of tensors in them, and a [Ring]. It has no links,
// models or devices, and imports no other package of Rondo. A [Summer] uses one of three methods:
//
//   - dense: all numbers travel, rounded if the ring rounds; of a tensor that is looked up by
//     token, only the rows or columns of tokens that some rank has looked up ([Lookup]);
//   - top-k: each rank sends the k numbers of each tensor that are the largest in magnitude
//     (Aji and Heafield, arXiv:1704.05021), and the numbers of all ranks are gathered and added;
//     they may come from the rank's momentum instead of its gradient ([Momentum]);
//   - PowerSGD: a matrix travels as two thin factors (Vogels et al., arXiv:1905.13727).
//
// A rank keeps what it does not send in a step, and adds it to its next gradient: error feedback
// (Seide et al. 2014; Stich et al., arXiv:1809.07854; Karimireddy et al., arXiv:1901.09847). So the
// sums sent plus the numbers kept equal the gradients, up to rounding.
//
// # Bytes
//
// Bytes that a rank sends in a step, for n floats on N ranks. S is top-k's share of the numbers.
//
//	dense               2(N-1)/N * 4n, or 2n with a ring of 16 bits
//	top-k               (N-1) * 8 S n
//	PowerSGD, rank r    2(N-1)/N * 4r(rows + columns) of each matrix, and 4 of each other number
//	lookup of width W   2(N-1)/N * 4W * touched tokens, and (N-1) * V/8 to tell which
//
// All ranks end with the same bits on any processor: they compute from a sum by the same operations
// in the same order, each rounded.
//
// # Lost steps and lost ranks
//
// A step that ends with a checkpoint sends all numbers, kept ones too, because no checkpoint holds
// them ([Summer.SendAll]).
//
// A Summer's kept numbers, momentum included, are those after the last committed step. The numbers
// after the current step are stored apart until its commit, so a repeated step starts from the same
// state. A rank keeps its numbers when the ring changes. They are lost with the rank, and when its
// state is replaced by another rank's or a checkpoint's.
package compress
