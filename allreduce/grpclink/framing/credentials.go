package framing

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// Plain reports whether gRPC writes to the connection directly, without TLS. Only then a Reader and
// a Writer can stand under it.
func Plain(c credentials.TransportCredentials) bool {
	return c.Info().SecurityProtocol == insecure.NewCredentials().Info().SecurityProtocol
}

// Credentials returns a server's credentials that put a Reader under each connection, where the
// streams' handlers find it. Credentials with TLS are returned as they are.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	if Plain(c) {
		return plain{c}
	}
	return c
}

// plain are the credentials of a server without TLS.
type plain struct {
	credentials.TransportCredentials
}

// ServerHandshake is called by gRPC for each new connection.
func (p plain) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	i := newReader(conn)
	return i, withReader{info, i}, nil
}

// Clone returns a copy.
func (p plain) Clone() credentials.TransportCredentials {
	return plain{p.TransportCredentials.Clone()}
}

// withReader is the AuthInfo of a connection, with the Reader under it.
type withReader struct {
	credentials.AuthInfo
	reader *Reader
}

// ReaderOf returns the Reader under a stream; nil: none.
func ReaderOf(ctx context.Context) *Reader {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	with, _ := p.AuthInfo.(withReader)
	return with.reader
}
