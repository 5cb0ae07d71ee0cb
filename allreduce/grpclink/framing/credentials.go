package framing

import (
	"bufio"
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

// Credentials returns a server's credentials that mark each connection, so that the streams'
// handlers can tell connections apart. Without TLS they also put a Reader under it, and with TLS a
// buffer for several records.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return marking{c, Plain(c)}
}

type marking struct {
	credentials.TransportCredentials
	plain bool
}

// ServerHandshake is called by gRPC for each new connection.
func (m marking) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !m.plain {
		under := &records{Conn: conn}
		conn, info, err := m.TransportCredentials.ServerHandshake(under)
		if err != nil {
			return nil, nil, err
		}
		if _, tls := info.(credentials.TLSInfo); tls { // strangers cost no buffer
			under.reader = bufio.NewReaderSize(under.Conn, recordsRead)
		}
		return conn, &Connection{AuthInfo: info}, nil
	}
	conn, info, err := m.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	i := newReader(conn)
	return i, &Connection{info, i}, nil
}

// Clone returns a copy.
func (m marking) Clone() credentials.TransportCredentials {
	return marking{m.TransportCredentials.Clone(), m.plain}
}

// Connection is the AuthInfo of a connection. Each connection has its own pointer.
type Connection struct {
	credentials.AuthInfo         // of the credentials beneath
	Reader               *Reader // nil with TLS
}

// ConnectionOf returns the connection of a stream that a server with Credentials has accepted; nil:
// it is not of such a server.
func ConnectionOf(ctx context.Context) *Connection {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	c, _ := p.AuthInfo.(*Connection)
	return c
}
