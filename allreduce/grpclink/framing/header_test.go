package framing

import (
	"bytes"
	"strings"
	"testing"

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
		'R', 'n', 'D', 3, 2, 0, 0, 0,
		0, 0, 0, 0, 0, 1, 0, 0,
		77, 0, 0, 0, 0, 0, 0, 0,
		5, 0, 0, 0, 3, 0, 0, 0,
		0, 0, 0, 16, 0, 0, 0, 0,
		3, 0, 0, 16, 0, 0, 0, 0,
		0, 0, 0, 0,
	}
	got := AppendHeader(nil, validHeader())
	if !bytes.Equal(got, want) {
		t.Fatalf("header\n% x, want\n% x", got, want)
	}
	h, err := ParseHeader(got, HeaderBytes+12)
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
		{"short", func(b []byte) []byte { return b[:HeaderBytes-1] }, "shorter than its"},
		{"magic", func(b []byte) []byte { b[0] = 'X'; return b }, `starts with "XnD"`},
		{"version", func(b []byte) []byte { b[3] = 9; return b }, "format 9, this worker reads 3"},
		{"phase", func(b []byte) []byte { b[4] = 5; return b }, "phase 5"},
		{"element", func(b []byte) []byte { b[5] = 3; return b }, "element 3"},
		{"element's size", func(b []byte) []byte { b[5] = 1; return b },
			"3 numbers of bf16 and carries 12 bytes"},
		{"reserved", func(b []byte) []byte { b[7] = 1; return b }, "flags"},
		{"flags", func(b []byte) []byte { b[6] = 2; return b }, "flags"},
		{"no flag", func(b []byte) []byte { b[50] = 1; return b }, "says that it has none"},
		{"step", func(b []byte) []byte { b[27] = 1; return b }, "ring step 16777221"},
		{"length", func(b []byte) []byte { b[28] = 4; return b },
			"4 numbers of fp32 and carries 12 bytes"},
		{"no payload", func(b []byte) []byte { b[28] = 0; return b[:HeaderBytes] }, "0 numbers"},
		{"truncated", func(b []byte) []byte { return b[:len(b)-1] }, "carries 11 bytes"},
		{"heartbeat", func(b []byte) []byte { b[4] = 4; return b }, "more than that"},
		{"heartbeat's sequence", func(b []byte) []byte {
			b[4] = 4
			return b[:HeaderBytes]
		}, "more than that"},
		{"range", func(b []byte) []byte { b[40] = 2; return b }, "3 of them, of 268435458"},
		{"total", func(b []byte) []byte { b[47] = 0x80; return b }, "of 9223372037123211267"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := test.change(append(AppendHeader(nil, validHeader()), make([]byte, 12)...))
			_, err := ParseHeader(b[:min(len(b), HeaderBytes)], len(b))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("parsed: %v, want %q", err, test.want)
			}
		})
	}
}

// TestChecksum: each bit of a sealed message is covered, in whatever pieces it arrives.
func TestChecksum(t *testing.T) {
	payload := []byte("123456789abc")
	sealed := AppendHeader(nil, validHeader())
	Seal(sealed, payload)
	sealed = append(sealed, payload...)
	opened := func(b []byte) error {
		_, err := ParseHeader(b[:HeaderBytes], len(b))
		if err == nil {
			const middle = HeaderBytes + 5
			err = Check(b[:HeaderBytes], [][]byte{b[HeaderBytes:middle], b[middle:]})
		}
		return err
	}
	if err := opened(sealed); err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(sealed) {
		damaged := bytes.Clone(sealed)
		damaged[bit/8] ^= 1 << (bit % 8)
		if opened(damaged) == nil {
			t.Errorf("bit %d of byte %d was flipped, and nobody noticed", bit%8, bit/8)
		}
	}
}

// BenchmarkChecksum seals and checks the longest message.
func BenchmarkChecksum(b *testing.B) {
	payload := make([]byte, allreduce.MaxChunkBytes)
	header := AppendHeader(nil, validHeader())
	b.SetBytes(2 * int64(len(payload)))
	for b.Loop() {
		Seal(header, payload)
		if err := Check(header, [][]byte{payload}); err != nil {
			b.Fatal(err)
		}
	}
}
