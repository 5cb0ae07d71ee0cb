package grpclink

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// plain are the credentials of a server without TLS. They put an intake under each connection,
// where the streams' handlers find it.
type plain struct {
	credentials.TransportCredentials
}

// isPlain reports whether gRPC writes to the connection directly, without TLS.
func isPlain(c credentials.TransportCredentials) bool {
	return c.Info().SecurityProtocol == insecure.NewCredentials().Info().SecurityProtocol
}

// ServerHandshake is called by gRPC for each new connection.
func (p plain) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	i := newIntake(conn)
	return i, underIntake{info, i}, nil
}

// Clone returns a copy.
func (p plain) Clone() credentials.TransportCredentials {
	return plain{p.TransportCredentials.Clone()}
}

// underIntake is the AuthInfo of a connection, with the intake under it.
type underIntake struct {
	credentials.AuthInfo
	intake *intake
}

// intakeOf returns the intake under a stream; nil: none.
func intakeOf(ctx context.Context) *intake {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	under, _ := p.AuthInfo.(underIntake)
	return under.intake
}
