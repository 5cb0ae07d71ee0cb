// Package framing has what lies between gRPC and a link's connections: the form of a message, and
// connections that keep payloads out of gRPC's copies. What is on the wire stays plain gRPC: each
// end works with a peer that does not use this package.
//
// The contract of both connections is that gRPC, or any HTTP/2 peer, cannot tell that they are
// there:
//
//   - [Writer] is under a client. It sends the bytes that were written, in order. It copies none of
//     a payload, so the payload's memory must not change until Release has called back.
//   - [Reader] is under a server. Its Read gives gRPC the connection's bytes in order, but for the
//     payloads that it holds back. Of such a message gRPC gets the header, as a whole message, when
//     all of the payload is there; Claim exchanges the header for the payload. A header for which
//     nothing is held fails like any damaged message.
//   - Whatever gRPC's Go client never sends (padding, a message that starts in another's frame)
//     ends the holding back: gRPC gets all later bytes as they are.
//   - Memory is bounded by the flow control window, which the Reader checks and returns itself for
//     what it holds.
//
// With TLS gRPC sees no frames before they are decrypted, and neither connection is used. Without
// them rings of two and four ranks took 1.3 and 1.4 times as long for 16 MiB over loopback:
// `rondo bench allreduce --link tcp`, and `--link grpc` beside it, measure both.
//
// It may import allreduce.
package framing
