package grpclink

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
)

// codec passes chunks as raw bytes. Messages of other services on the same gRPC server (health,
// reflection) go to the protobuf codec.
type codec struct{}

func (codec) Name() string { return "rondo-ring" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if o, ok := v.(*outgoing); ok {
		return o.buffers, nil
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	if in, ok := v.(*incoming); ok {
		data.Ref()
		in.buffers = append(in.buffers[:0], data...)
		return nil
	}
	return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
}

// scratchBytes holds a header and a payload for which gRPC counts no references, because it is too
// short. It is above that threshold itself, so that gRPC reports when it has finished with it.
const scratchBytes = 2 << 10

// outgoing is a message that gRPC sends: the header in its own scratch, and the payload in the
// sender's memory. gRPC reads both after SendMsg has returned, until it has copied them to its
// write buffer. Then it frees them, and outgoing learns of it as their pool.
type outgoing struct {
	scratch    [scratchBytes]byte
	head, body []byte
	buffers    mem.BufferSlice
	held       atomic.Int32 // buffers that gRPC has not freed
	freed      func()       // called when gRPC has freed all buffers
	done       func()       // called when nothing reads the message any more
}

func newOutgoing() *outgoing { return &outgoing{buffers: make(mem.BufferSlice, 0, 2)} }

// load prepares the message for SendMsg, which always frees it. A sealed one has a checksum.
func (o *outgoing) load(h allreduce.Header, payload []byte, sealed bool) {
	head := framing.AppendHeader(o.scratch[:0], h)
	if sealed {
		framing.Seal(head, payload)
	}
	body := payload
	if mem.IsBelowBufferPoolingThreshold(len(body)) {
		head, body = append(head, body...), nil
	}
	if len(head) > scratchBytes || mem.IsBelowBufferPoolingThreshold(scratchBytes) {
		panic(fmt.Sprintf("grpclink: gRPC counts no references to less than %d bytes", len(head)))
	}
	o.head, o.body = head, body[:len(body):len(body)]
	o.buffers = append(o.buffers[:0], mem.NewBuffer(&o.head, o))
	if len(body) > 0 {
		o.buffers = append(o.buffers, mem.NewBuffer(&o.body, o))
	}
	o.held.Store(int32(len(o.buffers)))
}

// Put takes a buffer back from gRPC. outgoing is the mem.BufferPool of its two buffers.
func (o *outgoing) Put(*[]byte) {
	if o.held.Add(-1) == 0 {
		o.freed()
	}
}

// Get makes outgoing a mem.BufferPool. gRPC never calls it.
func (o *outgoing) Get(n int) *[]byte {
	panic(fmt.Sprintf("grpclink: %d bytes wanted from the pool of a message", n))
}

// incoming is a received message: references to gRPC's buffers, and the function that drops them.
type incoming struct {
	buffers mem.BufferSlice
	held    *framing.Payload // the payload, if it is not in the buffers
	header  [framing.HeaderBytes]byte
	release func()
}

// open moves the header and the payload's pieces to m. The pieces are valid until free. from is the
// Reader that may hold the payload; nil: none.
func (in *incoming) open(m *allreduce.Message, from *framing.Reader) error {
	size := in.buffers.Len()
	header := in.header[:]
	at := in.buffers.CopyTo(header)
	if from != nil && size == framing.HeaderBytes {
		if in.held = from.Claim(header); in.held != nil {
			size += in.held.Bytes
		}
	}
	h, err := framing.ParseHeader(header[:at], size)
	if err != nil {
		return err
	}
	m.Header, m.Pieces = h, m.Pieces[:0]
	if in.held != nil {
		m.Pieces = append(m.Pieces, in.held.Pieces...)
		return framing.Check(header, m.Pieces)
	}
	for _, buffer := range in.buffers {
		piece := buffer.ReadOnlyData()
		skip := min(at, len(piece))
		at -= skip
		if len(piece) > skip {
			m.Pieces = append(m.Pieces, piece[skip:])
		}
	}
	return framing.Check(header, m.Pieces)
}

func (in *incoming) free() {
	if in.held != nil {
		in.held.Release()
		in.held = nil
	}
	in.buffers.Free()
	clear(in.buffers)
	in.buffers = in.buffers[:0]
}
