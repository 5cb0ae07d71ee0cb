// Package grpclink is the link between two ranks of a ring over gRPC: the service rondo.v1.Ring.
//
// A worker's [Server] takes its predecessor's stream, [Dial] opens the one to its successor, and
// [Connect] does both for a plan. Before a chunk flows both sides check that they are of one job,
// one generation and neighbours in it; what does not fit is refused with both values. A message
// is a header of fixed size and the floats' own bytes. Without TLS the connections under gRPC are
// this package's own: the client's writes payloads from the caller's memory (gather.go), the
// server's hands them on in the blocks that it has read (intake.go). What travels is plain gRPC.
//
// It does not decide who is in the ring, and does not reduce. It may import allreduce and proto.
package grpclink
