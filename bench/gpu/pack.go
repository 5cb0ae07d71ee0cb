package main

import (
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

// packWindow is how far back a repeated part of the programs is found.
const packWindow = 128 << 20

// compress writes a stream as zstd: a quarter smaller than gzip. The machine that unpacks it may
// lack the command zstd, so decompress does it there.
func compress(to io.Writer, from io.Reader) error {
	w, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedBestCompression),
		zstd.WithWindowSize(packWindow))
	if err != nil {
		return err
	}
	_, err = io.Copy(w, from)
	return errors.Join(err, w.Close())
}

// decompress writes what compress has read.
func decompress(to io.Writer, from io.Reader) error {
	r, err := zstd.NewReader(from, zstd.WithDecoderMaxWindow(packWindow))
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(to, r)
	return err
}
