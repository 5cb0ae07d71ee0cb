package framing

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// frame returns a data frame as gRPC writes it: its header, and the payload's pieces.
func frame(pieces ...[]byte) [][]byte {
	n := 0
	for _, piece := range pieces {
		n += len(piece)
	}
	header := []byte{byte(n >> 16), byte(n >> 8), byte(n), dataFrame, 0, 0, 0, 0, 1}
	return append([][]byte{header}, pieces...)
}

// TestWriterCopiesWhatMayChange: the bytes arrive in order for any frames. Short pieces and bytes
// outside of payloads may be overwritten as soon as Write has returned.
func TestWriterCopiesWhatMayChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		g := NewWriter(near)
		payload := bytes.Repeat([]byte{7}, FrameBytes-5)
		settings := append([]byte{0, 3, 0, 4, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{9}, 3<<8)...)
		var pieces [][]byte
		pieces = append(pieces, []byte("PRI * HTTP/2.0"), settings)
		for range 40 { // more than a batch
			pieces = append(pieces, frame([]byte("12345"), payload)...)
		}
		pieces = append(pieces, settings)
		pieces = append(pieces, frame([]byte("12345"), payload[:copyBytes])...)
		pieces = append(pieces, frame()...)
		want := bytes.Join(pieces, nil)
		written := make(chan error, 1)
		go func() {
			for _, piece := range pieces {
				given := piece
				if &piece[0] != &payload[0] || len(piece) <= copyBytes {
					given = bytes.Clone(piece)
				}
				if n, err := g.Write(given); n != len(given) || err != nil {
					written <- err
					return
				}
				if &given[0] != &payload[0] {
					clear(given)
				}
			}
			written <- nil
		}()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(far, got); err != nil {
			t.Fatal(err)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Error("what arrives is not what was written")
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := g.Write(settings); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write after Close: %v", err)
		}
	})
}

// TestWriterReleases: a message within which gRPC stops is written, and its sender may overwrite it
// only after that.
func TestWriterReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		g := NewWriter(near)
		payload := make([]byte, FrameBytes)
		done := 0
		give := func() { done++ }
		for _, piece := range frame(payload) { // a full frame: more might follow
			if _, err := g.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		g.Release(give)
		synctest.Wait()
		if done != 0 {
			t.Error("given back before anybody has read it")
		}
		got := make([]byte, frameHeaderBytes+FrameBytes)
		if _, err := io.ReadFull(far, got); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if done != 1 {
			t.Errorf("given back %d times after all was read, want once", done)
		}
		g.Release(give)
		if done != 2 {
			t.Error("not given back at once although nothing waits")
		}
		for _, piece := range frame(payload) {
			if _, err := g.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		g.Release(give)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if done != 3 {
			t.Error("not given back although the connection is closed")
		}
	})
}

// TestWriterReleasesAtClose: Close releases messages behind a frame that was never completed.
func TestWriterReleasesAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, _ := net.Pipe()
		g := NewWriter(near)
		done := 0
		if _, err := g.Write(frame(make([]byte, FrameBytes))[0]); err != nil {
			t.Fatal(err)
		}
		g.Release(func() { done++ })
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if done != 1 {
			t.Errorf("given back %d times, want once", done)
		}
	})
}
