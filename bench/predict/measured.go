package predict

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"rondo/bench/busbw"
)

// ReadMeasured reads a file of `rondo bench allreduce --json`.
func ReadMeasured(file string) ([]Measured, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var all []Measured
	for lines := json.NewDecoder(in); ; {
		var r busbw.Row
		err := lines.Decode(&r)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", len(all)+1, err)
		}
		all = append(all, Measured{World: r.World, Bytes: float64(r.Bytes), Seconds: r.MS / 1e3})
	}
}
