package compress

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"time"
)

// liar is the ring of rank 0 of two, whose other rank sends any bytes.
type liar struct {
	says  []byte
	words []uint32 // what it has said in gatherings
}

// word returns the next four bytes, from the first again after the last.
func (l *liar) word() uint32 {
	var four [4]byte
	n := copy(four[:], l.says)
	l.says = append(l.says[n:], four[:n]...)
	return binary.LittleEndian.Uint32(four[:])
}

func (l *liar) AllReduce(_ context.Context, buf []float32) error {
	for i := range buf {
		buf[i] += math.Float32frombits(l.word())
	}
	return nil
}

func (l *liar) AllGather(_ context.Context, buf []float32, ends []int) error {
	for i := ends[0]; i < ends[1]; i++ {
		l.words = append(l.words, l.word())
		buf[i] = math.Float32frombits(l.words[len(l.words)-1])
	}
	return nil
}

func (l *liar) Start(
	ctx context.Context, buf, _ []float32, _ *time.Time,
) (Pending, error) {
	return done{}, l.AllReduce(ctx, buf)
}

type done struct{}

func (done) Wait(context.Context) error { return nil }

// FuzzWire: whatever another rank sends, a sum ends, and places that there are not are an error.
func FuzzWire(f *testing.F) {
	const rows, columns = 40, 3
	const n = rows * columns
	tensors := []Tensor{{Rows: rows, Columns: columns}}
	f.Add([]byte{})
	f.Add([]byte{n, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0x80, 0x7f})
	f.Fuzz(func(t *testing.T, says []byte) {
		for way, config := range map[string]Config{
			"top-k":    {TopK: 0.05},
			"PowerSGD": {PowerSGD: 2},
			"lookup":   {Lookup: &Lookup{Tensor: tensors[0], Always: true}},
		} {
			config.Length, config.Tensors = n, tensors
			s, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			ring := &liar{says: append([]byte(nil), says...)}
			s.Join(ring, Place{Rank: 0, World: 2, Generation: 1})
			s.Resume(0, 1, false)
			gradient := make([]float32, n)
			for i := range gradient {
				gradient[i] = float32(i%7) - 3
			}
			s.Touch([]int32{0, 5})
			err = s.Sum(t.Context(), 1, 1, gradient)
			damaged := false
			switch way {
			case "top-k": // its indices come first
				for _, index := range ring.words[:len(ring.words)/2] {
					damaged = damaged || index >= n
				}
			case "lookup": // one bit for each row
				damaged = ring.words[rows/32]>>(rows%32) != 0
			}
			if (err != nil) != damaged {
				t.Errorf("%s: damaged %t: %v", way, damaged, err)
			}
			s.Commit(false)
		}
	})
}
