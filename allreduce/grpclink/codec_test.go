package grpclink

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
)

func validHeader() allreduce.Header {
	return allreduce.Header{
		Generation: 1 << 40,
		Sequence:   77,
		Phase:      allreduce.AllGather,
		Step:       5,
		Offset:     1 << 28,
		Length:     3,
		Total:      1<<28 + 3,
	}
}

// FuzzMessage opens arbitrary bytes in arbitrary pieces. A message that is accepted names a range
// of a buffer, carries exactly its numbers, and has the bytes that the sender would write for that
// header.
func FuzzMessage(f *testing.F) {
	valid := append(framing.AppendHeader(nil, validHeader()), make([]byte, 12)...)
	f.Add(valid, uint64(1))
	f.Add(valid[:40], uint64(2))
	sealed := bytes.Clone(valid)
	framing.Seal(sealed[:framing.HeaderBytes], sealed[framing.HeaderBytes:])
	f.Add(sealed, uint64(5))
	f.Add([]byte{}, uint64(3))
	beat := allreduce.Header{Generation: 9, Phase: allreduce.Heartbeat}
	f.Add(framing.AppendHeader(nil, beat), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var in incoming
		for rest := b; len(rest) > 0; {
			n := rng.IntN(min(len(rest), 60) + 1)
			in.buffers, rest = append(in.buffers, mem.SliceBuffer(rest[:n])), rest[n:]
		}
		var m allreduce.Message
		if err := in.open(&m, nil); err != nil {
			return
		}
		h := m.Header
		if h.Phase != allreduce.Heartbeat && h.Length < 1 ||
			h.Offset < 0 || h.Total-h.Offset < h.Length || h.Step < 0 {
			t.Errorf("{%v} is no range", h)
		}
		payload := slices.Concat(m.Pieces...)
		if len(payload) != h.Element.Bytes()*h.Length {
			t.Errorf("{%v} has %d bytes", h, len(payload))
		}
		again := framing.AppendHeader(nil, h)
		if b[6] != 0 {
			framing.Seal(again, payload)
		}
		if again = append(again, payload...); !bytes.Equal(again, b) {
			t.Errorf("{%v} is written\n% x, was\n% x", h, again, b)
		}
	})
}

// TestOutgoing: gRPC's last Free, in any order, returns the message once.
func TestOutgoing(t *testing.T) {
	for _, floats := range []int{1, 255, 256, 257, allreduce.MaxChunkBytes / 4} {
		done := 0
		o := newOutgoing()
		o.freed = func() { done++ }
		payload := make([]float32, floats)
		for i := range payload {
			payload[i] = float32(i)
		}
		for round := range 3 {
			h := validHeader()
			h.Length = floats
			o.load(h, allreduce.Bytes(payload), round == 0)
			data, err := codec{}.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			want := framing.AppendHeader(nil, h)
			if round == 0 {
				framing.Seal(want, allreduce.Bytes(payload))
			}
			want = append(want, allreduce.Bytes(payload)...)
			if got := data.Materialize(); !bytes.Equal(got, want) {
				t.Fatalf("%d floats: the message is not header and payload", floats)
			}
			data.Ref()
			data.Free()
			if done != round {
				t.Fatalf("%d floats: given back while gRPC has it", floats)
			}
			for _, buffer := range slices.Backward(data) {
				buffer.Free()
			}
			if done != round+1 {
				t.Fatalf("%d floats: given back %d times, want %d", floats, done, round+1)
			}
		}
	}
}

func TestShorten(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"short", "short"},
		{"bad \xff byte", "bad \uFFFD byte"},
		{strings.Repeat("x", maxReasonBytes), strings.Repeat("x", maxReasonBytes)},
		{strings.Repeat("é", maxReasonBytes), strings.Repeat("é", (maxReasonBytes-3)/2) + "…"},
	} {
		if got := shorten(test.in); got != test.want {
			t.Errorf("%.20q of %d bytes: %.20q… of %d, want %d bytes",
				test.in, len(test.in), got, len(got), len(test.want))
		}
	}
}
