package grpclink

import "google.golang.org/grpc/metadata"

// Hello returns the metadata with which the worker in seat dials its successor.
func Hello(s Seat) metadata.MD { return hello{Seat: s, to: s.successor()}.metadata() }
