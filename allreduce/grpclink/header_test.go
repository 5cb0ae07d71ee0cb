package grpclink

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"rondo/allreduce"
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

func TestHeader(t *testing.T) {
	want := []byte{
		'R', 'n', 'D', 2, 2, 0, 0, 0,
		0, 0, 0, 0, 0, 1, 0, 0,
		77, 0, 0, 0, 0, 0, 0, 0,
		5, 0, 0, 0, 3, 0, 0, 0,
		0, 0, 0, 16, 0, 0, 0, 0,
		3, 0, 0, 16, 0, 0, 0, 0,
	}
	got := appendHeader(nil, validHeader())
	if !bytes.Equal(got, want) {
		t.Fatalf("header\n% x, want\n% x", got, want)
	}
	h, err := parseHeader(got, headerBytes+12)
	if err != nil || h != validHeader() {
		t.Errorf("parsed {%v}, %v", h, err)
	}
}

func TestHeaderRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(b []byte) []byte
		want   string
	}{
		{"short", func(b []byte) []byte { return b[:headerBytes-1] }, "shorter than its"},
		{"magic", func(b []byte) []byte { b[0] = 'X'; return b }, `starts with "XnD"`},
		{"version", func(b []byte) []byte { b[3] = 9; return b }, "format 9, this worker reads 2"},
		{"phase", func(b []byte) []byte { b[4] = 5; return b }, "phase 5"},
		{"element", func(b []byte) []byte { b[5] = 3; return b }, "element 3"},
		{"element's size", func(b []byte) []byte { b[5] = 1; return b },
			"3 numbers of bf16 and carries 12 bytes"},
		{"flags", func(b []byte) []byte { b[7] = 1; return b }, "flags"},
		{"step", func(b []byte) []byte { b[27] = 1; return b }, "ring step 16777221"},
		{"length", func(b []byte) []byte { b[28] = 4; return b },
			"4 numbers of fp32 and carries 12 bytes"},
		{"no payload", func(b []byte) []byte { b[28] = 0; return b[:headerBytes] }, "0 numbers"},
		{"truncated", func(b []byte) []byte { return b[:len(b)-1] }, "carries 11 bytes"},
		{"heartbeat", func(b []byte) []byte { b[4] = 4; return b }, "more than that"},
		{"heartbeat's sequence", func(b []byte) []byte {
			b[4] = 4
			return b[:headerBytes]
		}, "more than that"},
		{"range", func(b []byte) []byte { b[40] = 2; return b }, "3 of them, of 268435458"},
		{"total", func(b []byte) []byte { b[47] = 0x80; return b }, "of 9223372037123211267"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := test.change(append(appendHeader(nil, validHeader()), make([]byte, 12)...))
			_, err := parseHeader(b[:min(len(b), headerBytes)], len(b))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("parsed: %v, want %q", err, test.want)
			}
		})
	}
}

// FuzzMessage opens arbitrary bytes in arbitrary pieces. A message that is accepted names a range
// of a buffer, carries exactly its numbers, and has the bytes that the sender would write for that
// header.
func FuzzMessage(f *testing.F) {
	valid := append(appendHeader(nil, validHeader()), make([]byte, 12)...)
	f.Add(valid, uint64(1))
	f.Add(valid[:40], uint64(2))
	f.Add([]byte{}, uint64(3))
	f.Add(appendHeader(nil, allreduce.Header{Generation: 9, Phase: allreduce.Heartbeat}), uint64(4))
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
		if again := append(appendHeader(nil, h), payload...); !bytes.Equal(again, b) {
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
			o.load(h, allreduce.Bytes(payload))
			data, err := codec{}.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			want := append(appendHeader(nil, h), allreduce.Bytes(payload)...)
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
