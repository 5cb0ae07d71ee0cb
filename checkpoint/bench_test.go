package checkpoint

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// benchmarkFloats is the size of the benchmarks' model: 64 MiB.
const benchmarkFloats = 16 << 20

func benchmarkSnapshot() Snapshot {
	x := make([]float32, benchmarkFloats)
	for i := range x {
		x[i] = float32(i)
	}
	half := len(x) / 2
	return Snapshot{Step: 1, Files: []File{
		{"model.safetensors", []Tensor{{"w", []int{half}, x[:half]}}},
		{"optimizer.safetensors", []Tensor{{"v", []int{half}, x[half:]}}},
	}}
}

func benchmarkStore(b *testing.B) *Store {
	store, err := Open(b.Context(), b.TempDir(), Config{Job: "bench", Identity: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	return store
}

// BenchmarkSave saves 64 MiB, and alternately writes and syncs the same bytes as plain files. It
// reports GB/s of both and their ratio (1: as fast as plain files).
func BenchmarkSave(b *testing.B) {
	store, snap, bare := benchmarkStore(b), benchmarkSnapshot(), b.TempDir()
	var ours, raw time.Duration
	for i := range b.N {
		start := time.Now()
		snap.Step = int64(i)
		if _, err := store.Save(b.Context(), snap); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(start)
		start = time.Now()
		for j, f := range snap.Files {
			name := filepath.Join(bare, fmt.Sprint(i, j))
			if err := writeBare(name, floatMemory(f.Tensors[0].Data)); err != nil {
				b.Fatal(err)
			}
		}
		raw += time.Since(start)
		b.StopTimer()
		if err := store.Remove(b.Context(), snap.Step); err != nil {
			b.Fatal(err)
		}
		for j := range snap.Files {
			os.Remove(filepath.Join(bare, fmt.Sprint(i, j)))
		}
		b.StartTimer()
	}
	report(b, ours, raw)
}

// report reports the rates of ours and of the plain files.
func report(b *testing.B, ours, raw time.Duration) {
	gigabytes := 4 * benchmarkFloats * float64(b.N) / 1e9
	b.ReportMetric(gigabytes/ours.Seconds(), "GB/s")
	b.ReportMetric(gigabytes/raw.Seconds(), "bare-GB/s")
	b.ReportMetric(raw.Seconds()/ours.Seconds(), "ratio")
}

func writeBare(name string, data []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for len(data) > 0 {
		n := min(len(data), pieceBytes)
		if _, err := f.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return f.Sync()
}

// BenchmarkLoad reads 64 MiB with its checks into memory, and alternately reads the same files
// plainly.
func BenchmarkLoad(b *testing.B) {
	store, snap := benchmarkStore(b), benchmarkSnapshot()
	path, err := store.Save(b.Context(), snap)
	if err != nil {
		b.Fatal(err)
	}
	var ours, raw time.Duration
	for range b.N {
		start := time.Now()
		c, err := store.Latest(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range snap.Files {
			if err := c.ReadInto(b.Context(), f.Name, f.Tensors); err != nil {
				b.Fatal(err)
			}
		}
		ours += time.Since(start)
		start = time.Now()
		for _, f := range snap.Files {
			err := readBare(filepath.Join(path, f.Name), floatMemory(f.Tensors[0].Data))
			if err != nil {
				b.Fatal(err)
			}
		}
		raw += time.Since(start)
	}
	report(b, ours, raw)
}

func readBare(name string, data []byte) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.ReadFull(f, data)
	return err
}

// BenchmarkSHA256 measures hashing alone, the upper bound of BenchmarkSave and BenchmarkLoad.
func BenchmarkSHA256(b *testing.B) {
	data := floatMemory(make([]float32, benchmarkFloats/4))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		sha256.Sum256(data)
	}
}
