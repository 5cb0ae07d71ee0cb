package train

import (
	"context"
	"encoding/binary"
	"fmt"
)

// gather gives every rank what each has to say: a value of fixed size, as encoding/binary has it.
// A float32 holds whole numbers of 24 bits, so the bytes travel in pairs.
func gather[T any](ctx context.Context, t *Trainer, own T) ([]T, error) {
	all := make([]T, len(t.ring.LaneEnds))
	if t.ring.Peers == nil {
		all[0] = own
		return all, nil
	}
	size := (binary.Size(own) + 1) / 2
	bytes, err := binary.Append(make([]byte, 0, 2*size), binary.LittleEndian, own)
	if err != nil {
		return nil, fmt.Errorf("train: telling the ranks: %w", err)
	}
	bytes = bytes[:2*size]
	wire, ends := make([]float32, size*len(all)), make([]int, len(all))
	for rank := range ends {
		ends[rank] = (rank + 1) * size
	}
	for i := range size {
		wire[t.ring.Rank*size+i] = float32(binary.LittleEndian.Uint16(bytes[2*i:]))
	}
	if err := t.ring.Peers.AllGather(ctx, wire, ends); err != nil {
		return nil, err
	}
	t.exchange.met = t.cfg.Now()
	for rank := range all {
		for i, pair := range wire[rank*size : ends[rank]] {
			binary.LittleEndian.PutUint16(bytes[2*i:], uint16(pair))
		}
		if _, err := binary.Decode(bytes, binary.LittleEndian, &all[rank]); err != nil {
			return nil, fmt.Errorf("train: hearing rank %d: %w", rank, err)
		}
	}
	return all, nil
}

// pieceFloats is how much of a tensor passes through host memory at once, where that is not the
// device's.
const pieceFloats = 1 << 20

// tensors are all that is the same on every rank: the parameters, and what the optimizer keeps.
// It is called between steps only.
func (t *Trainer) tensors() [][]float32 { return append([][]float32{t.task.Params()}, t.slots...) }

// copyState copies the tensors of the rank donor to those who receive. The others take part too,
// and are left as they are: what they have is the same, to the last bit. A rank that receives has
// no state until this has come to its end.
func (t *Trainer) copyState(ctx context.Context, donor int, receive bool) error {
	ends := make([]int, len(t.ring.LaneEnds))
	move := func(x []float32) error { // the donor contributes all, the others nothing
		for rank := donor; rank < len(ends); rank++ {
			ends[rank] = len(x)
		}
		return t.ring.Peers.AllGather(ctx, x, ends)
	}
	for _, x := range t.tensors() {
		if t.cfg.HostMemory {
			if err := move(x); err != nil {
				return err
			}
			continue
		}
		for len(x) > 0 {
			n := min(len(x), len(t.piece))
			if t.ring.Rank == donor {
				t.dev.Download(t.piece[:n], x[:n])
			}
			if err := move(t.piece[:n]); err != nil {
				return err
			}
			if receive {
				t.dev.Upload(x[:n], t.piece[:n])
			}
			x = x[n:]
		}
	}
	return nil
}
