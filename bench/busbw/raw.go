package busbw

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
)

const (
	// pieceBytes is how much the raw ring reads before it adds it: less than a processor's
	// cache holds, and enough that system calls cost little.
	pieceBytes = 256 << 10

	// streamBytes are sent to measure the loopback, in writes of streamWriteBytes.
	streamBytes      = 256 << 20
	streamWriteBytes = 1 << 20
)

// rawRing is package allreduce's ring, with its segments and chunks, on two bare TCP connections:
// no headers, no heartbeats, no flow control of its own. Its speed is the ring's bound if the link
// above TCP were free.
type rawRing struct {
	seat
	predecessor, successor net.Conn
	piece                  []byte
}

// connectRaw dials the successor and takes the predecessor's call.
func connectRaw(
	ctx context.Context, listener net.Listener, s seat, addresses []string,
) (*rawRing, error) {
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	r := &rawRing{seat: s, piece: make([]byte, pieceBytes)}
	var err error
	// The call succeeds before the successor takes it: all listen already.
	r.successor, err = new(net.Dialer).DialContext(ctx, "tcp", addresses[(s.Rank+1)%s.World])
	if err != nil {
		return nil, fmt.Errorf("raw ring: %w", err)
	}
	grpclink.Unpace(r.successor)
	if r.predecessor, err = listener.Accept(); err != nil {
		r.successor.Close()
		return nil, fmt.Errorf("raw ring: %w", err)
	}
	return r, nil
}

// Close closes both connections.
func (r *rawRing) Close() error {
	r.successor.Close()
	return r.predecessor.Close()
}

// begin gives the connections a deadline, and has them end with ctx.
func (r *rawRing) begin(ctx context.Context) (stop func() bool) {
	deadline := time.Now().Add(stepTimeout)
	for _, conn := range []net.Conn{r.predecessor, r.successor} {
		_ = conn.SetDeadline(deadline) // fails only once the connection does
	}
	return context.AfterFunc(ctx, func() { r.Close() })
}

// AllReduce has the schedule of [allreduce.Ring.AllReduce]: in ring step k, rank r sends segment
// r-1-k and receives segment r-2-k. A chunk is sent on as soon as it has been added.
func (r *rawRing) AllReduce(ctx context.Context, buf []float32) error {
	stop := r.begin(ctx)
	defer stop()
	steps := 2 * (r.World - 1)
	most := steps * (len(buf)*4/allreduce.MaxChunkBytes + 1)
	ready, gone := make(chan struct{}, most), make(chan struct{}, most)
	sent := make(chan error, 1)
	go func() {
		defer close(gone)
		sent <- r.send(buf, steps, ready, gone)
	}()
	err := r.receive(buf, steps, ready, gone)
	if err != nil {
		r.Close() // so that neither our sender nor the neighbours wait for it
	}
	close(ready)
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	if err != nil {
		return fmt.Errorf("raw ring, rank %d: %w", r.Rank, err)
	}
	return nil
}

// send sends chunks that are ready, and reports those that are sent.
func (r *rawRing) send(
	buf []float32, steps int, ready <-chan struct{}, gone chan<- struct{},
) error {
	for k := range steps {
		for chunk := range chunks(r.segment(buf, r.Rank-1-k)) {
			if k > 0 {
				if _, more := <-ready; !more {
					return nil // the side that closed it reports why
				}
			}
			if _, err := r.successor.Write(allreduce.Bytes(chunk)); err != nil {
				return err
			}
			gone <- struct{}{}
		}
	}
	return nil
}

// receive adds received chunks, or keeps them. A kept chunk replaces one that this rank has sent,
// in the order of sending; receive waits until that write has returned.
func (r *rawRing) receive(
	buf []float32, steps int, ready chan<- struct{}, gone <-chan struct{},
) error {
	for k := range steps {
		for chunk := range chunks(r.segment(buf, r.Rank-2-k)) {
			if k >= r.World-1 {
				<-gone
			}
			if err := r.take(chunk, k < r.World-1); err != nil {
				return err
			}
			ready <- struct{}{}
		}
	}
	return nil
}

// take reads a chunk: to its place, or piece by piece to be added there.
func (r *rawRing) take(chunk []float32, adds bool) error {
	if !adds {
		_, err := io.ReadFull(r.predecessor, allreduce.Bytes(chunk))
		return err
	}
	for at := 0; at < len(chunk); at += pieceBytes / 4 {
		dst := chunk[at:min(at+pieceBytes/4, len(chunk))]
		piece := r.piece[:4*len(dst)]
		if _, err := io.ReadFull(r.predecessor, piece); err != nil {
			return err
		}
		allreduce.Combine(dst, [][]byte{piece}, allreduce.ReduceScatter, allreduce.Float32)
	}
	return nil
}

// segment returns segment i of buf, modulo the world.
func (r *rawRing) segment(buf []float32, i int) []float32 {
	i = (i%r.World + r.World) % r.World
	size, longer := len(buf)/r.World, len(buf)%r.World
	lo := i*size + min(i, longer)
	if i < longer {
		size++
	}
	return buf[lo : lo+size]
}

// chunks cuts a segment as the ring does.
func chunks(segment []float32) func(yield func([]float32) bool) {
	return func(yield func([]float32) bool) {
		for len(segment) > 0 {
			n := min(len(segment), allreduce.MaxChunkBytes/4)
			if !yield(segment[:n]) {
				return
			}
			segment = segment[n:]
		}
	}
}

// stream sends from rank 0 to rank 1, as iperf does, and returns how many seconds it took: until
// rank 1 has said that it has read all. The first write only starts both. Others do nothing.
func (r *rawRing) stream(ctx context.Context) ([]float64, error) {
	stop := r.begin(ctx)
	defer stop()
	buf := make([]byte, streamWriteBytes)
	switch r.Rank {
	case 0:
		if err := r.write(buf, 1); err != nil {
			return nil, err
		}
		began := time.Now()
		err := r.write(buf, streamBytes/streamWriteBytes)
		return []float64{time.Since(began).Seconds()}, err
	case 1:
		if err := r.read(buf, 1); err != nil {
			return nil, err
		}
		return nil, r.read(buf, streamBytes/streamWriteBytes)
	}
	return nil, nil
}

// write sends buf times times, and waits for the answer to the last.
func (r *rawRing) write(buf []byte, times int) error {
	for range times {
		if _, err := r.successor.Write(buf); err != nil {
			return fmt.Errorf("loopback, sending: %w", err)
		}
	}
	if _, err := io.ReadFull(r.successor, buf[:1]); err != nil {
		return fmt.Errorf("loopback, waiting for the reader: %w", err)
	}
	return nil
}

// read receives the bytes of write, and answers.
func (r *rawRing) read(buf []byte, times int) error {
	for range times {
		if _, err := io.ReadFull(r.predecessor, buf); err != nil {
			return fmt.Errorf("loopback, reading: %w", err)
		}
	}
	if _, err := r.predecessor.Write(buf[:1]); err != nil {
		return fmt.Errorf("loopback, answering: %w", err)
	}
	return nil
}
