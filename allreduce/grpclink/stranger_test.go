package grpclink

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
)

// stranger is a predecessor that does not use this package. It follows HTTP/2 and gRPC, its streams
// share a connection, and it respects the server's windows.
type stranger struct {
	conn    net.Conn
	frames  *http2.Framer
	encoded bytes.Buffer
	encoder *hpack.Encoder
	room    map[uint32]int // window of the connection, 0, and of streams
}

func newStranger(t *testing.T, address string) *stranger {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // a stall fails the test
	s := &stranger{conn: conn, frames: http2.NewFramer(conn, conn), room: map[uint32]int{0: 65_535}}
	s.encoder = hpack.NewEncoder(&s.encoded)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := s.frames.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return s
}

// call opens a stream, and returns when the server has answered.
func (s *stranger) call(stream uint32, h hello) error {
	s.encoded.Reset()
	for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"},
		{":path", "/rondo.v1.Ring/Link"}, {":authority", "stranger"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = s.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	for key, values := range h.metadata() {
		value := values[0]
		if strings.HasSuffix(key, "-bin") {
			value = base64.StdEncoding.EncodeToString([]byte(value))
		}
		_ = s.encoder.WriteField(hpack.HeaderField{Name: key, Value: value})
	}
	s.room[stream] = framing.WindowBytes
	err := s.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: s.encoded.Bytes(), EndHeaders: true})
	for err == nil {
		var f http2.Frame
		if f, err = s.hear(); err == nil && f.Header().Type == http2.FrameHeaders {
			return nil
		}
	}
	return err
}

func (s *stranger) hear() (http2.Frame, error) {
	f, err := s.frames.ReadFrame()
	switch f := f.(type) {
	case *http2.WindowUpdateFrame:
		s.room[f.StreamID] += int(f.Increment)
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = s.frames.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = s.frames.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame:
		err = fmt.Errorf("%v", f)
	}
	return f, err
}

// say sends bytes of a stream within the windows. If wait is set, it waits for more room. It
// returns the number of bytes sent.
func (s *stranger) say(stream uint32, b []byte, wait bool) (int, error) {
	sent := 0
	for sent < len(b) {
		n := min(len(b)-sent, framing.FrameBytes, s.room[0], s.room[stream])
		if n < min(len(b)-sent, framing.FrameBytes) {
			if !wait {
				return sent, nil
			}
			if _, err := s.hear(); err != nil {
				return sent, fmt.Errorf("room for %d and %d: %w", s.room[0], s.room[stream], err)
			}
			continue
		}
		if err := s.frames.WriteData(stream, false, b[sent:sent+n]); err != nil {
			return sent, err
		}
		s.room[0], s.room[stream], sent = s.room[0]-n, s.room[stream]-n, sent+n
	}
	return sent, nil
}

// TestStranger: chunks arrive from a client with its own framing, and on a connection whose earlier
// stream was cancelled while its chunks waited.
func TestStranger(t *testing.T) {
	const chunks, floats = 12, 150_000
	for name, apart := range map[string]bool{"message by message": true, "as it comes": false} {
		t.Run(name, func(t *testing.T) {
			server, address := serveStrangers(t)
			s := newStranger(t, address)
			for generation := range 3 {
				self := Seat{Job: "j", Generation: allreduce.Generation(generation + 1),
					Rank: 1, World: 2}
				h := hello{Seat: self, to: 1}
				h.Rank = 0
				link := make(chan allreduce.Predecessor, 1)
				go func() {
					p, _ := server.Accept(t.Context(), self, "stranger")
					link <- p
				}()
				stream := uint32(2*generation + 1)
				if err := s.call(stream, h); err != nil {
					t.Fatal(err)
				}
				p := <-link
				if p == nil {
					t.Fatal("no link")
				}
				last := generation == 2
				received := make(chan error, 1)
				if last {
					go func() { received <- receiveAll(p, chunks, floats) }()
				}
				if err := s.sayChunks(stream, chunks, floats, apart, last); err != nil {
					t.Fatal(err)
				}
				if last {
					if err := <-received; err != nil {
						t.Fatal(err)
					}
				}
				if err := s.frames.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
					t.Fatal(err)
				}
				<-p.Broken()
				_ = p.Close()
			}
		})
	}
}

func serveStrangers(t *testing.T) (*Server, string) {
	t.Helper()
	server, err := NewServer("j", ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(ServerOptions(nil)...)
	server.Register(g)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	return server, listener.Addr().String()
}

// sayChunks sends chunks, framed message by message or as one stream of bytes. It sends all of
// them, or as many as there is room for.
func (s *stranger) sayChunks(stream uint32, chunks, floats int, apart, all bool) error {
	var said [][]byte
	for k := range chunks {
		message := binary.BigEndian.AppendUint32([]byte{0}, uint32(framing.HeaderBytes+4*floats))
		message = framing.AppendHeader(message, allreduce.Header{
			Generation: allreduce.Generation(stream/2 + 1), Phase: allreduce.ReduceScatter,
			Offset: k * floats, Length: floats, Total: chunks * floats})
		said = append(said, append(message, bytes.Repeat([]byte{byte(k)}, 4*floats)...))
	}
	if !apart {
		said = [][]byte{bytes.Join(said, nil)}
	}
	for _, message := range said {
		n, err := s.say(stream, message, all)
		if err != nil || n < len(message) {
			return err
		}
	}
	return nil
}

func receiveAll(p allreduce.Predecessor, chunks, floats int) error {
	var m allreduce.Message
	for k := range chunks {
		if err := p.Receive(&m); err != nil {
			return fmt.Errorf("chunk %d: %w", k, err)
		}
		got := bytes.Join(m.Pieces, nil)
		want := bytes.Repeat([]byte{byte(k)}, 4*floats)
		if m.Header.Offset != k*floats || !bytes.Equal(got, want) {
			return fmt.Errorf("chunk %d is not what was sent: %v", k, m.Header)
		}
		m.Release()
	}
	return nil
}
