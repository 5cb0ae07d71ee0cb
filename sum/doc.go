// Package sum has the ways to sum a gradient over ranks. Each is a type that implements train.Sum,
// and is made for one ring of ranks:
//
//   - [Around]: around the ring, in buckets that travel while backward goes on (buckets.go);
//   - [Hierarchy]: within hosts first, then across them (hierarchy.go);
//   - [Compressed]: with fewer bytes, by allreduce/compress (compressed.go). policy.go decides what
//     that changes in the update;
//   - [Tree]: the lane groups' gradients in the order of one binary tree (tree.go);
//   - [Group]: between the devices directly, by NCCL (group.go).
//
// Package sum/sharded has one more, which also updates the parameters.
//
// Every sum ends a step in the same way: a tail of numbers behind the gradient is summed last,
// around the ring. A rank that completes it knows that every rank has the gradient's sum.
//
// The package opens no links. Of this module it may import allreduce, allreduce/compress and
// compute.
package sum
