// Package sum has the ways in which ranks sum a gradient. Each is a type behind train.Sum, made for
// one ring of ranks by the function of its name:
//
//   - [Around]: around the ring, in buckets that travel while backward goes on (buckets.go);
//   - [ByHosts]: within hosts first, then across them (hierarchy.go);
//   - [Compressed]: with fewer bytes, by allreduce/compress (compressed.go);
//   - [AsTree]: the lane groups' gradients in the order of one binary tree (tree.go);
//   - [Between]: between the devices themselves, as NCCL does (group.go).
//
// Package sum/sharded has one more, which updates the parameters as it sums.
//
// All of them end a step in the same way: a tail of numbers behind the gradient is summed around
// the ring after all else. A rank that completes it knows that every rank has the gradient's sum.
//
// Of this module it may import allreduce, allreduce/compress and compute.
package sum
