package busbw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net"
	"slices"
	"time"

	"rondo/allreduce"
)

// ring is which of the rings an order is for.
type ring string

const (
	onLink ring = "ring"     // package allreduce, over the link
	onTCP  ring = "raw ring" // rawRing
	onTree ring = "tree"     // package allreduce, the sum of --reduce canonical, over the link
)

// The leader writes JSON values to a rank: a seat, the meeting, then orders. The rank answers each
// with an answer. It ends when there are no more orders.
type (
	seat struct {
		Rank, World int
		Link, Wire  string
		Address     string // IP address to listen on
	}
	meeting struct {
		Addresses, Raw []string // of all ranks
	}
	order struct {
		Do          task
		Ring        ring
		Bytes       int
		Repetitions int
	}
	answer struct {
		Address, Raw string    // to a seat: where this rank's predecessor finds it
		Digest       uint64    // to doCheck: of the sum's bits
		Seconds      []float64 // to doTime, of each repetition; to doStream, of rank 0, one
		Error        string
	}
)

// task is the work of an order.
type task string

const (
	doCheck  task = "check"
	doTime   task = "time"
	doStream task = "stream"
)

// Serve runs one rank. It carries out the leader's orders from in until in ends, and answers
// through out. Failures go to the leader as answers; the error returned is that of reading in or
// writing out.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	return serve(ctx, in, out, func(l link, s seat) (ends, error) {
		return newGRPCEnds(l, s.Address)
	})
}

// conversation is a rank's side of it.
type conversation struct {
	in  *json.Decoder
	out *json.Encoder
}

func (c conversation) answer(a answer, err error) error {
	if err != nil {
		a.Error = err.Error()
	}
	return c.out.Encode(a)
}

// serve is Serve with links that open makes.
func serve(
	ctx context.Context, in io.Reader, out io.Writer, open func(link, seat) (ends, error),
) error {
	c := conversation{json.NewDecoder(in), json.NewEncoder(out)}
	r, err := c.join(ctx, open)
	if r != nil {
		defer r.close()
	}
	if err = c.answer(answer{}, err); err != nil || r == nil {
		return err
	}
	for {
		var o order
		if err := c.in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("orders of the bench: %w", err)
		}
		if err := c.answer(r.obey(ctx, o)); err != nil {
			return err
		}
	}
}

// rank is a rank whose rings are formed.
type rank struct {
	seat
	ends ends
	ring *allreduce.Ring
	raw  *rawRing
}

func (r *rank) close() {
	r.ring.Close()
	r.raw.Close()
	r.ends.close()
}

// join takes a seat and forms both rings.
func (c conversation) join(
	ctx context.Context, open func(link, seat) (ends, error),
) (*rank, error) {
	var s seat
	if err := c.in.Decode(&s); err != nil {
		return nil, fmt.Errorf("the seat: %w", err)
	}
	l, known := linkOf(s.Link)
	_, travels := elementOf(s.Wire)
	if !known || !travels || s.World < 2 || s.Rank < 0 || s.Rank >= s.World {
		return nil, fmt.Errorf("no such seat: %+v", s)
	}
	ends, err := open(l, s)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(s.Address, "0"))
	if err != nil {
		ends.close()
		return nil, err
	}
	defer listener.Close()
	r, err := c.meet(ctx, s, ends, listener)
	if err != nil {
		ends.close()
	}
	return r, err
}

// meet tells where this rank is, hears where the others are, and connects.
func (c conversation) meet(
	ctx context.Context, s seat, ends ends, listener net.Listener,
) (*rank, error) {
	here := answer{Address: ends.address(), Raw: listener.Addr().String()}
	if err := c.answer(here, nil); err != nil {
		return nil, err
	}
	var m meeting
	if err := c.in.Decode(&m); err != nil {
		return nil, fmt.Errorf("the meeting: %w", err)
	}
	if len(m.Addresses) != s.World || len(m.Raw) != s.World {
		return nil, fmt.Errorf("%d and %d addresses for %d ranks", len(m.Addresses), len(m.Raw),
			s.World)
	}
	links, err := ends.connect(ctx, s, m.Addresses)
	if err != nil {
		return nil, err
	}
	ring, err := allreduce.New(allreduce.Config{
		Rank: allreduce.Rank(s.Rank), World: s.World, Generation: 1,
		ChunkTimeout: chunkTimeout, StepTimeout: stepTimeout,
	}, links)
	if err != nil {
		return nil, err
	}
	raw, err := connectRaw(ctx, listener, s, m.Raw)
	if err != nil {
		ring.Close()
		return nil, err
	}
	return &rank{seat: s, ends: ends, ring: ring, raw: raw}, nil
}

// reducer is either ring.
type reducer interface {
	AllReduce(ctx context.Context, buf []float32) error
}

// reducer returns a ring, for sums of n numbers and of one a rank.
func (r *rank) reducer(which ring, n int) reducer {
	switch which {
	case onTCP:
		return r.raw
	case onTree:
		return r.newTree(max(n, r.World))
	}
	return wired{r.ring, r.element()}
}

// wired is the ring with a number format on the wire.
type wired struct {
	ring    *allreduce.Ring
	element allreduce.Element
}

func (w wired) AllReduce(ctx context.Context, buf []float32) error {
	sum, err := w.ring.Start(ctx, allreduce.Sum{Buf: buf, Element: w.element})
	if err != nil {
		return err
	}
	return sum.Wait(ctx)
}

func (r *rank) element() allreduce.Element {
	element, _ := elementOf(r.Wire)
	return element
}

// numbers returns the length of an order's buffer. The bare ring sums float32 only, so its buffer
// is shorter if the wire has 16 bits: as many bytes travel.
func (r *rank) numbers(o order) int {
	if o.Ring == onTCP {
		return max(1, o.Bytes/4*r.element().Bytes()/4)
	}
	return o.Bytes / 4
}

func (r *rank) obey(ctx context.Context, o order) (answer, error) {
	var a answer
	var err error
	n := r.numbers(o)
	switch o.Do {
	case doCheck:
		a.Digest, err = r.check(ctx, r.reducer(o.Ring, n), n, r.rounding(o.Ring))
	case doTime:
		a.Seconds, err = r.time(ctx, r.reducer(o.Ring, n), n, o.Repetitions)
	case doStream:
		a.Seconds, err = r.raw.stream(ctx)
	default:
		err = fmt.Errorf("no such order: %q", o.Do)
	}
	return a, err
}

// check all-reduces n numbers, holds the sum against that in float64, and returns a digest of its
// bits.
func (r *rank) check(ctx context.Context, by reducer, n int, rounding float64) (uint64, error) {
	buf := make([]float32, n)
	for i := range buf {
		buf[i] = sample(r.Rank, i)
	}
	if err := by.AllReduce(ctx, buf); err != nil {
		return 0, err
	}
	digest := fnv.New64a()
	for i, got := range buf {
		sum, size := 0.0, 0.0
		for rank := range r.World {
			x := float64(sample(rank, i))
			sum += x
			size += math.Abs(x)
		}
		// Each of the World-1 additions rounds, and so does the final sum.
		bound := float64(r.World) * (size*rounding + tiniest)
		if !(math.Abs(float64(got)-sum) <= bound) {
			return 0, fmt.Errorf("rank %d: number %d of %d sums to %v, want %v within %.2g", r.Rank,
				i, n, got, sum, bound)
		}
	}
	_, _ = digest.Write(allreduce.Bytes(buf)) // never fails
	return digest.Sum64(), nil
}

// tiniest bounds the error of the smallest number of 16 bits: binary16's, 2^-24.
const tiniest = 1.0 / (1 << 25)

// rounding bounds the error of rounding a number of size 1 to the wire format: half a unit of the
// last of 24, 8 or 11 bits.
func (r *rank) rounding(which ring) float64 {
	bits := 24
	switch {
	case which == onTCP:
	case r.element() == allreduce.BFloat16:
		bits = 8
	case r.element() == allreduce.Float16:
		bits = 11
	}
	return math.Ldexp(1, -bits)
}

// elements returns the number formats of the wire.
func elements() []allreduce.Element {
	return []allreduce.Element{allreduce.Float32, allreduce.BFloat16, allreduce.Float16}
}

// Wires are their names.
func Wires() []string {
	var names []string
	for _, e := range elements() {
		names = append(names, e.String())
	}
	return names
}

func elementOf(name string) (allreduce.Element, bool) {
	i := slices.Index(Wires(), name)
	if i < 0 {
		return 0, false
	}
	return elements()[i], true
}

// sample is number i of a rank, in [-1, 1): all 24 bits of it, so that sums round.
func sample(rank, i int) float32 {
	x := uint64(i+1)*0x9e3779b97f4a7c15 + uint64(rank+1)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return float32(int64(x)>>39) / (1 << 24)
}

// time times repetitions of an all-reduce of n zeros, which no number of sums makes overflow.
// Before each, outside of the time, the ranks wait for each other: by the same ring, with a number
// a rank.
func (r *rank) time(ctx context.Context, by reducer, n, repetitions int) ([]float64, error) {
	buf, barrier := make([]float32, n), make([]float32, r.World)
	clear(buf) // the system gives pages when they are written: not within the first repetition
	seconds := make([]float64, repetitions)
	for i := range seconds {
		if err := by.AllReduce(ctx, barrier); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := by.AllReduce(ctx, buf); err != nil {
			return nil, err
		}
		seconds[i] = time.Since(began).Seconds()
	}
	return seconds, nil
}
