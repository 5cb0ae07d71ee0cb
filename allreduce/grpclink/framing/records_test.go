package framing

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	random "math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// counted counts the reads and writes of a connection.
type counted struct {
	net.Conn
	calls atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	c.calls.Add(1)
	return c.Conn.Read(p)
}

func (c *counted) Write(p []byte) (int, error) {
	c.calls.Add(1)
	return c.Conn.Write(p)
}

// overTLS returns both ends of a TCP connection on loopback with TLS over records, and what is
// beneath them.
func overTLS(t testing.TB) (client, server net.Conn, beneath [2]*counted) {
	t.Helper()
	dialled, accepted := connected(t)
	beneath = [2]*counted{{Conn: dialled}, {Conn: accepted}}
	serving, dialling := selfSigned(t)
	client, server = meet(t, ClientCredentials(dialling), Credentials(serving), beneath[0],
		beneath[1])
	return client, server, beneath
}

// selfSigned returns credentials of a server, and of a client that believes it.
func selfSigned(t testing.TB) (server, client credentials.TransportCredentials) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}}),
		credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
}

// connected returns both ends of a TCP connection on loopback.
func connected(t testing.TB) (dialled, accepted net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if dialled, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if accepted, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{dialled, accepted} {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		t.Cleanup(func() { conn.Close() })
	}
	return dialled, accepted
}

// meet does both handshakes.
func meet(t testing.TB, dialling, serving credentials.TransportCredentials,
	dialled, accepted net.Conn) (client, server net.Conn) {
	t.Helper()
	met := make(chan error, 1)
	go func() {
		var err error
		server, _, err = serving.ServerHandshake(accepted)
		met <- err
	}()
	client, _, err := dialling.ClientHandshake(t.Context(), "", dialled)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-met; err != nil {
		t.Fatal(err)
	}
	return client, server
}

// TestRecords: what is written over TLS arrives, in both directions, in fewer system calls than it
// has records; and a small write arrives although nothing follows.
func TestRecords(t *testing.T) {
	client, server, beneath := overTLS(t)
	if _, err := client.Write([]byte("small")); err != nil {
		t.Fatal(err)
	}
	small := make([]byte, 5)
	if _, err := io.ReadFull(server, small); err != nil || string(small) != "small" {
		t.Fatalf("%q, %v", small, err)
	}
	const most = 600 << 10
	sent := make([]byte, 8<<20)
	rng := random.New(random.NewPCG(1, 2))
	for i := range sent {
		sent[i] = byte(rng.Uint32())
	}
	for name, ends := range map[string][2]net.Conn{"to the server": {client, server},
		"to the client": {server, client}} {
		before := beneath[0].calls.Load() + beneath[1].calls.Load()
		wrote := make(chan error, 1)
		go func() {
			var err error
			for rest := sent; len(rest) > 0 && err == nil; {
				n := min(len(rest), 1+rng.IntN(most))
				_, err = ends[0].Write(rest[:n])
				rest = rest[n:]
			}
			wrote <- err
		}()
		got := make([]byte, len(sent))
		_, err := io.ReadFull(ends[1], got)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%s: %v, or other bytes", name, err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		calls := beneath[0].calls.Load() + beneath[1].calls.Load() - before
		records := int64(len(sent) / recordBytes)
		t.Logf("%s: %d records, %d system calls", name, records, calls)
		if name == "to the server" && calls > records {
			t.Errorf("%s: %d system calls for %d records", name, calls, records)
		}
	}
}

// TestRecordsOfABrokenConnection: a large write fails, and does not claim to have been sent.
func TestRecordsOfABrokenConnection(t *testing.T) {
	client, _, beneath := overTLS(t)
	beneath[0].Conn.Close()
	if n, err := client.Write(make([]byte, 100<<10)); err == nil || n == 100<<10 {
		t.Errorf("%d bytes, %v", n, err)
	}
}
