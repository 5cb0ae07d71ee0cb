// Package grpclink implements links between ranks of a ring over gRPC: the service rondo.v1.Ring.
//
// A worker's [Server] accepts its predecessor's stream, [Dial] opens the stream to its successor,
// and [Connect] does both for a plan. Before the first chunk both sides check that they are
// neighbours in the same generation of the same job. A mismatch is refused, with both values in the
// error. A message is a header of fixed size and the bytes of its numbers. Without TLS this package
// supplies the connections under gRPC: the client's writes payloads from the caller's memory
// (writev.go), and the server's delivers them in the blocks that it has read (intake.go). The wire
// format stays plain gRPC.
//
// It does not decide who is in the ring, and does not reduce. It may import allreduce,
// allreduce/shm and proto.
package grpclink
