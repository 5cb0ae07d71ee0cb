// Package grpclink implements links between ranks of a ring over gRPC: the service rondo.v1.Ring.
//
// A worker's [Server] accepts its predecessor's stream, [Dial] opens the stream to its successor,
// and [Connect] does both for a plan. Before the first chunk both sides check that they are
// neighbours in the same generation of the same job. A mismatch is refused, with both values in the
// error. What lies between gRPC and the connections is package framing's: the form of messages, and
// without TLS the connections themselves.
//
// It does not decide who is in the ring, and does not reduce. It may import allreduce,
// allreduce/shm, framing and proto.
package grpclink
