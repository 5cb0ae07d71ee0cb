package grpclink

import (
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"rondo/allreduce"
)

// codec passes chunks through as raw bytes, and leaves the messages of other services on the
// same gRPC server (health, reflection) to the protobuf codec.
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

// scratchBytes holds a header and a payload too small for gRPC to count references to. It is
// itself larger than that threshold, so that gRPC says when it is done with it.
const scratchBytes = 2 << 10

// outgoing is a message in gRPC's hands: the header in its own scratch, and the payload in the
// memory of whoever sends. gRPC goes on reading both after SendMsg has returned, until it has
// copied them to its write buffer; then it frees them, and as their pool outgoing learns of it.
type outgoing struct {
	scratch    [scratchBytes]byte
	head, body []byte
	buffers    mem.BufferSlice
	held       atomic.Int32 // buffers that gRPC has not freed
	freed      func()       // called when it has freed all
	done       func()       // called when nothing reads the message any more
}

func newOutgoing() *outgoing { return &outgoing{buffers: make(mem.BufferSlice, 0, 2)} }

// load makes the message ready for SendMsg, which frees it whatever happens.
func (o *outgoing) load(h allreduce.Header, payload []byte) {
	head := appendHeader(o.scratch[:0], h)
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

// Put takes a buffer back from gRPC. It makes outgoing a mem.BufferPool of its own two.
func (o *outgoing) Put(*[]byte) {
	if o.held.Add(-1) == 0 {
		o.freed()
	}
}

// Get is the half of mem.BufferPool that is not used.
func (o *outgoing) Get(n int) *[]byte {
	panic(fmt.Sprintf("grpclink: %d bytes wanted from the pool of a message", n))
}

// incoming is a received message: references to gRPC's buffers, and how to drop them.
type incoming struct {
	buffers mem.BufferSlice
	aside   *aside // the payload, if it is not in the buffers
	header  [headerBytes]byte
	release func()
}

// open moves the header and the pieces of the payload to m. The pieces are valid until free. from
// is where the payload may have been set aside; nil: nowhere.
func (in *incoming) open(m *allreduce.Message, from *intake) error {
	size := in.buffers.Len()
	header := in.header[:]
	at := in.buffers.CopyTo(header)
	if from != nil && size == headerBytes {
		if in.aside = from.claim(header); in.aside != nil {
			size += in.aside.bytes
		}
	}
	h, err := parseHeader(header[:at], size)
	if err != nil {
		return err
	}
	m.Header, m.Pieces = h, m.Pieces[:0]
	if in.aside != nil {
		m.Pieces = append(m.Pieces, in.aside.pieces...)
		return nil
	}
	for _, buffer := range in.buffers {
		piece := buffer.ReadOnlyData()
		skip := min(at, len(piece))
		at -= skip
		if len(piece) > skip {
			m.Pieces = append(m.Pieces, piece[skip:])
		}
	}
	return nil
}

func (in *incoming) free() {
	if in.aside != nil {
		in.aside.release()
		in.aside = nil
	}
	in.buffers.Free()
	clear(in.buffers)
	in.buffers = in.buffers[:0]
}
