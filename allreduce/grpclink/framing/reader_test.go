package framing

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
)

// wire is a connection with all bytes of a predecessor: reads return at most cut bytes, and writes
// are recorded.
type wire struct {
	net.Conn
	said    []byte
	cut     int
	written bytes.Buffer
}

func (w *wire) Read(p []byte) (int, error) {
	if len(w.said) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.said[:min(len(w.said), w.cut)])
	w.said = w.said[n:]
	return n, nil
}

func (w *wire) Write(p []byte) (int, error) { return w.written.Write(p) }

func (w *wire) SetWriteDeadline(time.Time) error { return nil }

func frameOf(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b := []byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// chunkOf returns a ring message as gRPC writes it, with its length prefix.
func chunkOf(offset, floats int, fill byte) []byte {
	h := allreduce.Header{Generation: 3, Sequence: 9, Phase: allreduce.ReduceScatter,
		Offset: offset, Length: floats, Total: 1 << 30}
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(HeaderBytes+4*floats))
	b = AppendHeader(b, h)
	return append(b, bytes.Repeat([]byte{fill}, 4*floats)...)
}

// framed cuts a message into frames of a stream, with other frames between them.
func framed(stream uint32, message []byte, between ...[]byte) []byte {
	var b []byte
	for len(message) > 0 {
		n := min(len(message), FrameBytes)
		b = append(b, frameOf(dataFrame, 0, stream, message[:n])...)
		message = message[n:]
		if len(message) > 0 {
			b = append(b, bytes.Join(between, nil)...)
		}
	}
	return b
}

// split is framed with a first frame of n bytes.
func split(stream uint32, message []byte, n int) []byte {
	return append(frameOf(dataFrame, 0, stream, message[:n]), framed(stream, message[n:])...)
}

func beat(stream uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{0}, HeaderBytes)
	b = AppendHeader(b, allreduce.Header{Generation: 3, Phase: allreduce.Heartbeat})
	return frameOf(dataFrame, 0, stream, b)
}

const (
	headersFrame = 1
	pingFrame    = 6
	endStream    = 1
	padded       = 8
)

func preface() []byte {
	return append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frameOf(4, 0, 0, nil)...)
}

// through returns what gRPC reads of said through a Reader, and the final error.
func through(said []byte, cut int) (*Reader, []byte, error) {
	i := newReader(&wire{said: said, cut: cut})
	i.Open()
	var got bytes.Buffer
	_, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{i}, make([]byte, 100))
	return i, got.Bytes(), err
}

// spread parses frames: others are all but data frames, unchanged; data is each stream's data, with
// held payloads inserted after their headers. An incomplete last frame is left out.
func spread(b []byte, from *Reader) (others []byte, data map[uint32][]byte) {
	data = map[uint32][]byte{}
	if len(b) < prefaceBytes {
		return b, data
	}
	others, b = b[:prefaceBytes:prefaceBytes], b[prefaceBytes:]
	for len(b) >= frameHeaderBytes {
		length := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
		end := frameHeaderBytes + length
		if len(b) < end {
			break
		}
		if b[3] != dataFrame || b[4] != 0 {
			others = append(others, b[:end]...)
		} else {
			stream := binary.BigEndian.Uint32(b[5:]) &^ reservedBit
			payload := bytes.Clone(b[frameHeaderBytes:end])
			if from != nil && length == PrefixBytes+HeaderBytes {
				if a := from.Claim(payload[PrefixBytes:]); a != nil {
					binary.BigEndian.PutUint32(payload[1:], uint32(HeaderBytes+a.Bytes))
					payload = append(payload, bytes.Join(a.Pieces, nil)...)
				}
			}
			data[stream] = append(data[stream], payload...)
		}
		b = b[end:]
	}
	return others, data
}

// holdTogether fails the test unless gRPC and the queue together have all of said, except for an
// incomplete end.
func holdTogether(t *testing.T, said []byte, cut int) {
	t.Helper()
	i, got, err := through(bytes.Clone(said), cut)
	wantOthers, want := spread(said, nil)
	others, data := spread(got, i)
	if err == nil && !bytes.Equal(others, wantOthers) || !bytes.HasPrefix(wantOthers, others) {
		t.Fatalf("cut %d: other frames are %d bytes, want %d", cut, len(others), len(wantOthers))
	}
	for stream, bytesOf := range data {
		if !bytes.HasPrefix(want[stream], bytesOf) {
			t.Fatalf("cut %d: stream %d has %d bytes that were not said", cut, stream,
				len(bytesOf))
		}
	}
	for stream, all := range want {
		missing := len(all) - len(data[stream])
		kept := 0 // bytes held until the whole message has arrived
		if stream == i.stream {
			kept = len(i.head)
			if i.now != nil {
				kept += i.now.Bytes - i.left
			}
		}
		if err == nil && missing > kept {
			t.Fatalf("cut %d: stream %d lacks %d bytes", cut, stream, missing)
		}
	}
}

// said returns all bytes of a predecessor: long and short chunks, with other frames between and
// within them.
func said() []byte {
	ping := frameOf(pingFrame, 0, 0, make([]byte, 8))
	other := frameOf(dataFrame, 0, 5, []byte("of another stream"))
	return bytes.Join([][]byte{
		preface(), frameOf(headersFrame, 4, 3, []byte("headers")), beat(3),
		framed(3, chunkOf(0, 30_000, 1), ping, other),
		framed(3, chunkOf(30_000, 700, 2)), beat(3),
		framed(3, chunkOf(31_000, 4_083, 3)), framed(3, chunkOf(40_000, 250_000, 4)), ping,
		split(3, chunkOf(2_000, 5_000, 5), 3), ping, split(3, beat(3)[9:], 52), beat(3),
		split(3, chunkOf(3_000, 5_000, 6), headBytes), split(3, chunkOf(4_000, 20, 7), 20),
		split(3, chunkOf(4_000, 20, 7), 60),
	}, nil)
}

func TestReaderLosesNothing(t *testing.T) {
	for _, cut := range []int{1, 7, 62, 63, 4_000, 16_393, 1 << 20} {
		holdTogether(t, said(), cut)
	}
	i, _, err := through(said(), 1<<20)
	if err != nil || len(i.queue) != 7 {
		t.Errorf("%d payloads held, %v, want 7", len(i.queue), err)
	}
}

// TestReaderClosed: before open is called, gRPC gets all bytes.
func TestReaderClosed(t *testing.T) {
	i := newReader(&wire{said: said(), cut: 1000})
	got, err := io.ReadAll(i)
	if err != nil || !bytes.Equal(got, said()) {
		t.Errorf("%d bytes of %d, %v", len(got), len(said()), err)
	}
}

// TestReaderTakesBack: gRPC gets the whole payload of a message that is framed as no Go client
// does, but other clients do.
func TestReaderTakesBack(t *testing.T) {
	long := chunkOf(0, 30_000, 1)
	rest := len(long) - 2*FrameBytes
	for name, next := range map[string][]byte{
		"ended":       frameOf(dataFrame, endStream, 3, nil),
		"ended at it": frameOf(dataFrame, endStream, 3, make([]byte, rest)),
		"padded":      frameOf(dataFrame, padded, 3, []byte{0, 1}),
		"too long":    frameOf(dataFrame, 0, 3, make([]byte, FrameBytes+1)),
		"and another": frameOf(dataFrame, 0, 3, append(make([]byte, rest), long[:4000]...)),
	} {
		all := bytes.Join([][]byte{preface(), framed(3, chunkOf(0, 9_000, 2)), beat(3),
			framed(3, long[:2*FrameBytes]), next, framed(3, long[4000:])}, nil)
		for _, cut := range []int{9, 1 << 20} {
			holdTogether(t, all, cut)
			i, _, err := through(bytes.Clone(all), cut)
			if err != nil || !i.off || len(i.queue) != 1 || i.unreturned != 36_000 {
				t.Errorf("%s: %v, %d payloads of %d bytes held, want the first", name, err,
					len(i.queue), i.unreturned)
			}
		}
	}
}

// TestReaderRefuses: after an unusual head of a message gRPC gets all bytes.
func TestReaderRefuses(t *testing.T) {
	long := chunkOf(0, 30_000, 1)
	whole := framed(3, long)
	for name, first := range map[string][]byte{
		"padded":           frameOf(dataFrame, padded, 3, append([]byte{0}, beat(3)[9:]...)),
		"of two messages":  frameOf(dataFrame, 0, 3, bytes.Repeat(beat(3)[9:], 2)),
		"of another kind":  frameOf(dataFrame, 0, 3, []byte{0, 0, 0, 0, 1, 'x'}),
		"too long":         frameOf(dataFrame, 0, 3, long[:FrameBytes+1]),
		"compressed":       frameOf(dataFrame, 0, 3, append([]byte{1}, long[1:FrameBytes]...)),
		"without a stream": frameOf(dataFrame, 0, 0, long[:FrameBytes]),
		"too short":        frameOf(dataFrame, 0, 3, []byte{0, 0, 0, 0, 5}),
	} {
		all := bytes.Join([][]byte{preface(), first, whole}, nil)
		i, got, err := through(bytes.Clone(all), 1<<20)
		if name == "without a stream" { // gRPC closes the connection for it
			if !bytes.HasPrefix(got, all[:len(preface())+len(first)]) {
				t.Errorf("%s: not handed on", name)
			}
			continue
		}
		if err != nil || !bytes.Equal(got, all) || len(i.queue) > 0 {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(all), err)
		}
	}
}

// TestReaderGivesUp: a partly held head that is not a ring's goes to gRPC.
func TestReaderGivesUp(t *testing.T) {
	bad := chunkOf(0, 30_000, 1)
	bad[40] = 0xff
	for name, frames := range map[string][]byte{
		"refused":   split(3, bad, 20),
		"refused 2": append(split(3, bad[:40], 30), framed(3, bad[40:])...),
		"padded": append(frameOf(dataFrame, 0, 3, bad[:30]),
			frameOf(dataFrame, padded, 3, []byte{0, 1})...),
		"ended": append(frameOf(dataFrame, 0, 3, bad[:30]),
			frameOf(dataFrame, endStream, 3, nil)...),
		"short": append(frameOf(dataFrame, 0, 3, bad[:1]),
			frameOf(dataFrame, 0, 3, make([]byte, 4))...),
	} {
		all := append(preface(), frames...)
		i, got, err := through(bytes.Clone(all), 11)
		wantOthers, want := spread(all, nil)
		others, data := spread(got, nil)
		if err != nil || !bytes.Equal(others, wantOthers) || !bytes.Equal(data[3], want[3]) {
			t.Errorf("%s: %d and %d bytes, %v, want %d and %d", name, len(others), len(data[3]),
				err, len(wantOthers), len(want[3]))
		}
		if !i.off || len(i.queue) > 0 {
			t.Errorf("%s: it has not given up", name)
		}
	}
}

// TestReaderBounded: a sender that exceeds its window is cut off.
func TestReaderBounded(t *testing.T) {
	all := preface()
	for k := range 3 {
		all = append(all, framed(3, chunkOf(k<<18, 1<<18, 1))...)
	}
	_, _, err := through(all, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "than there was room for") {
		t.Errorf("3 MiB at once: %v", err)
	}
}

// TestReaderClaims: a header without a payload claims nothing, unless it equals the next held
// one's. Each payload is claimed once.
func TestReaderClaims(t *testing.T) {
	first, second := chunkOf(0, 9_000, 1), chunkOf(9_000, 9_000, 2)
	i, _, err := through(bytes.Join([][]byte{preface(), framed(3, first), framed(3, second)},
		nil), 5000)
	if err != nil {
		t.Fatal(err)
	}
	of := func(message []byte) []byte { return message[PrefixBytes:][:HeaderBytes] }
	if i.Claim(of(second)) != nil {
		t.Error("a payload is handed out before its turn")
	}
	for _, message := range [][]byte{first, second} {
		a := i.Claim(of(message))
		if a == nil || !bytes.Equal(bytes.Join(a.Pieces, nil), message[PrefixBytes+HeaderBytes:]) {
			t.Fatal("not the held payload")
		}
		if i.Claim(of(message)) != nil {
			t.Error("a payload is handed out twice")
		}
		a.Release()
	}
	if len(i.queue) > 0 || i.unreturned != 72_000 || i.returnable != 72_000 {
		t.Errorf("%d in the queue, %d bytes unreturned, %d returnable", len(i.queue),
			i.unreturned, i.returnable)
	}
}

// TestReaderCredits: window space of released payloads returns to the predecessor, in frames that
// never interrupt a frame of gRPC's.
func TestReaderCredits(t *testing.T) {
	const floats = creditBytes / 4
	chunk := chunkOf(0, floats, 1)
	w := &wire{said: append(preface(), framed(3, chunk)...), cut: 1 << 20}
	i := newReader(w)
	i.Open()
	if _, err := io.ReadAll(i); err != nil {
		t.Fatal(err)
	}
	ping := frameOf(pingFrame, 1, 0, make([]byte, 8))
	_, err := i.Write(ping[:12])
	i.Claim(chunk[PrefixBytes:][:HeaderBytes]).Release()
	if err != nil || w.written.Len() != 12 {
		t.Errorf("within a frame: %d bytes written, %v, want 12", w.written.Len(), err)
	}
	_, err = i.Write(ping[12:])
	want := fmt.Sprintf("%s\x00\x00\x04\x08\x00\x00\x00\x00\x00%s"+
		"\x00\x00\x04\x08\x00\x00\x00\x00\x03%[2]s", ping, []byte{0, creditBytes >> 16, 0, 0})
	if err != nil || w.written.String() != want {
		t.Errorf("written %q, %v, want %q", w.written.String(), err, want)
	}
	if i.unreturned != 0 || i.returnable != 0 || len(i.blocks) == 0 {
		t.Errorf("%d bytes unreturned, %d returnable, %d blocks free", i.unreturned, i.returnable,
			len(i.blocks))
	}
}

// TestReaderBlocks: short unclaimed payloads do not keep all bytes between them in memory.
func TestReaderBlocks(t *testing.T) {
	all := preface()
	for k := range 10 * maxBlocks {
		all = append(all, split(3, chunkOf(k, 1, 1), 20)...)
		all = append(all, frameOf(0xfe, 0, 0, make([]byte, blockBytes/2))...)
	}
	i, _, err := through(all, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "chunks that wait") || i.made > maxBlocks {
		t.Errorf("%v, with %d blocks", err, i.made)
	}
}

// TestReaderLeaves: after the link's handler returns, its payloads' window space is returned, and
// bytes of another stream go to gRPC.
func TestReaderLeaves(t *testing.T) {
	first, second := framed(3, chunkOf(0, creditBytes/4, 1)), framed(3, chunkOf(0, 30_000, 2))
	head := len(preface()) + len(first) + frameHeaderBytes + FrameBytes
	all := bytes.Join([][]byte{preface(), first, second}, nil)
	w := &wire{said: bytes.Clone(all[:head]), cut: 1 << 20}
	i := newReader(w)
	i.Open()
	before, err := io.ReadAll(i)
	if err != nil || len(i.queue) != 1 || i.left == 0 {
		t.Fatalf("%d payloads, %d bytes of the next are to come, %v", len(i.queue), i.left, err)
	}
	i.Leave()
	update := []byte{0, 0, 4, windowUpdateFrame, 0, 0, 0, 0, 0, 0, creditBytes >> 16, 0, 0}
	if !bytes.Equal(w.written.Bytes(), update) {
		t.Errorf("written %q, want %q", w.written.Bytes(), update)
	}
	w.said = bytes.Clone(all[head:])
	after, err := io.ReadAll(i)
	_, data := spread(append(before, after...), nil)
	_, want := spread(second, nil)
	if err != nil || !bytes.HasSuffix(data[3], want[3]) || i.unreturned != 0 || len(i.queue) != 0 {
		t.Errorf("gRPC has %d bytes, %v, %d are unreturned", len(data[3]), err, i.unreturned)
	}
}

// slow is a wire with slow reads.
type slow struct{ wire }

func (s *slow) Read(p []byte) (int, error) {
	time.Sleep(lifeInterval/3 + 1)
	return s.wire.Read(p)
}

// TestReaderShowsLife: while a payload arrives, gRPC gets empty data frames.
func TestReaderShowsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := framed(3, chunkOf(0, 1<<18, 1))
		said := append(preface(), long[:len(long)-1]...)
		i := newReader(&slow{wire{said: bytes.Clone(said), cut: len(said)/12 + 1}})
		i.Open()
		got, err := io.ReadAll(i)
		want := append(preface(), bytes.Repeat(frameOf(dataFrame, 0, 3, nil), 4)...)
		if err != nil || i.left != 1 || len(got) < len(preface())+2*frameHeaderBytes ||
			!bytes.HasPrefix(want, got) {
			t.Errorf("%d bytes to come, gRPC got %d bytes, %v", i.left, len(got), err)
		}
	})
}

// TestReaderReleases: release does not wait for gRPC's write to a predecessor that does not read.
// The window update follows that write.
func TestReaderReleases(t *testing.T) {
	chunk := chunkOf(0, creditBytes/4, 1)
	w := &wire{said: append(preface(), framed(3, chunk)...), cut: 1 << 20}
	i := newReader(w)
	i.Open()
	if _, err := io.ReadAll(i); err != nil {
		t.Fatal(err)
	}
	i.writing.Lock()
	i.Claim(chunk[PrefixBytes:][:HeaderBytes]).Release()
	i.writing.Unlock()
	ping := frameOf(pingFrame, 1, 0, make([]byte, 8))
	_, err := i.Write(ping)
	if want := len(ping) + 2*windowUpdateFrameBytes; err != nil || w.written.Len() != want {
		t.Errorf("%d bytes written, %v, want %d", w.written.Len(), err, want)
	}
}

// FuzzReader appends arbitrary bytes to a link's own, cut anywhere. gRPC's bytes and the held
// payloads together are the bytes sent.
func FuzzReader(f *testing.F) {
	f.Add(beat(3), uint16(0), 3)
	f.Add(framed(3, chunkOf(5, 5_000, 1), frameOf(pingFrame, 0, 0, nil)), uint16(9), 99)
	f.Add(frameOf(dataFrame, endStream, 3, []byte("more")), uint16(30_000), 1)
	f.Fuzz(func(t *testing.T, more []byte, keep uint16, cut int) {
		if cut < 1 || len(more) > 1<<18 {
			return
		}
		chunk := framed(3, chunkOf(0, 10_000, 1))
		chunk = chunk[:min(len(chunk), int(keep))]
		all := bytes.Join([][]byte{preface(), beat(3), chunk, more}, nil)
		holdTogether(t, all, cut)
		_, once, err := through(bytes.Clone(all), cut)
		_, again, other := through(bytes.Clone(all), 1<<20)
		if !bytes.Equal(once, again) || (err == nil) != (other == nil) || errors.Is(err, io.EOF) {
			t.Fatalf("cut %d: %d bytes, %v; uncut %d, %v", cut, len(once), err, len(again), other)
		}
	})
}
