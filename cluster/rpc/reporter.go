package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	rondov1 "rondo/proto/rondo/v1"
)

// errClosed is Report's error after Close.
var errClosed = errors.New("the reporter is closed")

// Reporter reports a worker's events to the leader, from a goroutine of its own.
//
// Each event that is not a step reaches every leader that the worker finds, once and in order. It
// is kept after one leader has it, for the next one, among the last QueueLimit records. Step events
// are sent at most once. When the queue is full, the oldest steps are dropped, so that training
// never waits for them.
type Reporter struct {
	client *Client
	source string
	leave  context.CancelFunc // ends the current stream in good order
	cancel context.CancelFunc // ends everything at once
	ended  chan struct{}
	wake   chan struct{} // has a token when a record waits

	mu        sync.Mutex
	records   []*rondov1.Record // by sequence
	last      uint64            // sequence of the newest record
	known     uint64            // newest sequence that this connection's leader is known to have
	sent      uint64            // newest sequence sent to it
	confirmed uint64            // newest sequence that any leader has
	silence   *time.Timer       // ends the connection if an answer is late
	closed    bool
	changed   chan struct{} // closed when known grows
}

// NewReporter starts a reporter of worker source, an id that is unique to this run of the process.
// Close ends it.
func (c *Client) NewReporter(source string) (*Reporter, error) {
	if source == "" || len(source) > SourceBytes {
		return nil, fmt.Errorf("rpc: a reporter needs the worker's id, of at most %d bytes; "+
			"it has %d", SourceBytes, len(source))
	}
	ctx, cancel := context.WithCancel(context.Background())
	working, leave := context.WithCancel(ctx)
	r := &Reporter{
		client: c, source: source, leave: leave, cancel: cancel, ended: make(chan struct{}),
		wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	go r.run(ctx, working)
	return r, nil
}

// Report queues an event, whose longest text it shortens if the event is larger than EventLimit. It
// never waits for a step. Any other event waits up to 5 s for room, if
// the queue is full of such events that no leader has.
func (r *Reporter) Report(ctx context.Context, e *rondov1.Event) error {
	if e.GetKind() == nil {
		panic("rpc: Report of an event without a kind")
	}
	e = shortened(e)
	queued, changed, err := r.queue(e)
	if queued || err != nil || isStep(e) {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	for !queued && err == nil {
		select {
		case <-changed:
			queued, changed, err = r.queue(e)
		case <-limited.Done():
			return fmt.Errorf("telling the coordinator: %d events wait already: %w",
				QueueLimit, limited.Err())
		}
	}
	return err
}

// queue adds an event if there is room. Otherwise changed closes when there may be room.
func (r *Reporter) queue(e *rondov1.Event) (queued bool, changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false, nil, errClosed
	}
	if !r.makeRoom() {
		return false, r.changed, nil
	}
	r.last++
	r.records = append(r.records, &rondov1.Record{Source: r.source, Sequence: r.last, Event: e})
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true, nil, nil
}

// makeRoom reports whether another record fits. If need be it drops the oldest record if the leader
// has it, and otherwise the oldest step. The caller holds the lock.
func (r *Reporter) makeRoom() bool {
	if len(r.records) < QueueLimit {
		return true
	}
	drop := 0
	if r.records[0].Sequence > r.known {
		drop = slices.IndexFunc(r.records, func(n *rondov1.Record) bool { return isStep(n.Event) })
	}
	if drop < 0 {
		return false
	}
	r.records = slices.Delete(r.records, drop, drop+1)
	return true
}

// Flush returns when a leader has all earlier reports, or ctx ends.
func (r *Reporter) Flush(ctx context.Context) error {
	r.mu.Lock()
	until := r.last
	r.mu.Unlock()
	for {
		r.mu.Lock()
		waiting := 0
		for _, n := range r.records {
			if n.Sequence > r.known && n.Sequence <= until {
				waiting++
			}
		}
		changed := r.changed
		r.mu.Unlock()
		if waiting == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-r.ended:
			return errClosed
		case <-ctx.Done():
			return fmt.Errorf("telling the coordinator: %d events still wait: %w",
				waiting, ctx.Err())
		}
	}
}

// Close flushes until ctx ends, and stops the reporter. A second call does nothing.
func (r *Reporter) Close(ctx context.Context) error {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if closed {
		<-r.ended
		return nil
	}
	err := r.Flush(ctx)
	r.leave()
	select {
	case <-r.ended:
	case <-ctx.Done():
	}
	r.cancel()
	<-r.ended
	return err
}

// run keeps a stream to the present leader until working ends. The last stream may end in good
// order after that, until ctx ends.
func (r *Reporter) run(ctx, working context.Context) {
	defer close(r.ended)
	var wait pause
	for working.Err() == nil {
		answered, err := r.session(ctx, working)
		if working.Err() != nil {
			return
		}
		r.client.cfg.Log.Debug("reporting: connecting again", "error", err)
		if answered {
			wait = pause{}
		}
		if !wait.wait(working) {
			return
		}
	}
}

// session runs one stream to one leader. answered: the leader has answered.
func (r *Reporter) session(ctx, working context.Context) (answered bool, err error) {
	conn, err := r.client.connect(working)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stay := context.AfterFunc(working, func() { cancel(nil) })
	silence := time.AfterFunc(answerTimeout, func() {
		cancel(fmt.Errorf("%s: no answer for %v", addressOf(conn), answerTimeout))
	})
	defer silence.Stop()

	stream, err := rondov1.NewCoordinatorClient(conn).Report(ctx)
	if err != nil {
		return false, causeOf(ctx, err)
	}
	// An error of Send only says that the stream has ended; Recv returns the reason.
	_ = stream.Send(&rondov1.Record{Source: r.source})
	receipt, err := stream.Recv()
	if err != nil {
		return false, causeOf(ctx, err)
	}
	r.begin(receipt.Sequence, silence)
	stay() // from now on the stream ends in good order
	received := make(chan error, 1)
	go func() { received <- r.receive(stream) }()
	r.send(ctx, working, stream, received)
	_ = stream.CloseSend()
	silence.Reset(answerTimeout)
	return true, causeOf(ctx, <-received)
}

// causeOf returns the reason of ctx's cancellation, if it has one, and otherwise err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// begin sets what a new leader has, so that it is sent all other queued records.
func (r *Reporter) begin(known uint64, silence *time.Timer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.sent, r.silence = known, known, silence
	r.silence.Stop()
	r.touch()
}

// next returns the next record to send, or nil. Its answer is due within answerTimeout.
func (r *Reporter) next() *rondov1.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.records, r.sent+1, compareSequence)
	if i == len(r.records) {
		return nil
	}
	if r.sent <= r.known {
		r.silence.Reset(answerTimeout)
	}
	record := r.records[i]
	r.sent, record.Retold = record.Sequence, record.Sequence <= r.confirmed
	return record
}

func compareSequence(n *rondov1.Record, sequence uint64) int {
	return cmp.Compare(n.Sequence, sequence)
}

// send sends the queued records until the stream, ctx or working ends. It leaves the stream's error
// in received.
func (r *Reporter) send(ctx, working context.Context,
	stream grpc.BidiStreamingClient[rondov1.Record, rondov1.Receipt], received chan error) {
	for {
		if record := r.next(); record != nil {
			if stream.Send(record) != nil {
				return
			}
			continue
		}
		select {
		case <-r.wake:
		case err := <-received:
			received <- err
			return
		case <-working.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reporter) receive(
	stream grpc.BidiStreamingClient[rondov1.Record, rondov1.Receipt]) error {
	for {
		receipt, err := stream.Recv()
		if err != nil {
			return err
		}
		r.acknowledge(receipt.Sequence)
	}
}

// acknowledge records that the leader has the records up to sequence. Their steps are dropped; the
// others are kept for the next leader.
func (r *Reporter) acknowledge(sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sequence <= r.known || sequence > r.sent {
		return
	}
	r.known, r.confirmed = sequence, max(r.confirmed, sequence)
	if r.known < r.sent {
		r.silence.Reset(answerTimeout)
	} else {
		r.silence.Stop()
	}
	r.records = slices.DeleteFunc(r.records, func(n *rondov1.Record) bool {
		return n.Sequence <= r.known && isStep(n.Event)
	})
	r.touch()
}

// touch wakes the callers that wait for receipts. The caller holds the lock.
func (r *Reporter) touch() {
	close(r.changed)
	r.changed = make(chan struct{})
}
