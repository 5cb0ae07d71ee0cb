package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// WriterConfig configures a Writer.
type WriterConfig struct {
	// Keep is the number of checkpoints to keep after each save; 0 keeps all.
	Keep int
	// Timeout bounds one save with its retention; 0 means DefaultTimeout.
	Timeout time.Duration
	// Done, if set, is called after every save, on the Writer's goroutine and in the order of
	// Submit.
	Done func(Result)
}

// DefaultTimeout bounds a save if WriterConfig.Timeout is 0.
const DefaultTimeout = 10 * time.Minute

// closeGrace is how long Close waits for a cancelled save to return.
const closeGrace = 5 * time.Second

// Result is the outcome of saving a snapshot.
type Result struct {
	Step int64
	Path string // of the saved checkpoint; empty if the save failed
	Took time.Duration
	// Err is the error of the save, RetainErr that of deleting older checkpoints.
	Err, RetainErr error
}

// ErrWriterClosed is returned by Submit after Close.
var ErrWriterClosed = errors.New("the checkpoint writer is closed")

// Writer saves snapshots in the background, with SaveOnce. One may be in progress and one may wait.
// It copies them into memory that it reuses.
type Writer struct {
	store *Store
	cfg   WriterConfig

	slots   chan struct{} // one token for each copy in use
	queue   chan *snapshotCopy
	closing chan struct{}
	done    chan struct{} // closed when the goroutine ends
	cancel  func()

	mu     sync.Mutex // guards the fields below and sends to queue
	closed bool
	idle   []*snapshotCopy
	last   error // error of the last save
}

// snapshotCopy is a copied snapshot with the memory of its tensors.
type snapshotCopy struct {
	snap   Snapshot
	memory []float32
}

// writerSlots is the largest number of snapshots that a Writer holds.
const writerSlots = 2

// NewWriter starts a Writer. The store must have been opened with a job. Close stops the Writer.
func NewWriter(store *Store, cfg WriterConfig) (*Writer, error) {
	if store.cfg.Job == "" {
		return nil, fmt.Errorf("checkpoint folder %s was opened without a job: it can only be read",
			store.place.at(""))
	}
	if cfg.Keep < 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("checkpoint writer: keep %d and timeout %v must not be negative",
			cfg.Keep, cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writer{
		store: store, cfg: cfg, cancel: cancel,
		slots: make(chan struct{}, writerSlots), queue: make(chan *snapshotCopy, writerSlots),
		closing: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run(ctx)
	return w, nil
}

// Submit copies a snapshot and returns; the caller may then change it. While one snapshot is being
// written and another waits, Submit blocks until ctx ends. No snapshot is dropped.
func (w *Writer) Submit(ctx context.Context, snap Snapshot) error {
	select {
	case w.slots <- struct{}{}:
	case <-w.closing:
		return ErrWriterClosed
	case <-ctx.Done():
		return fmt.Errorf("checkpoint of step %d waits for the ones before it: %w", snap.Step,
			ctx.Err())
	}
	h := w.take()
	h.copy(snap)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		<-w.slots
		return ErrWriterClosed
	}
	w.queue <- h // has room for every slot
	return nil
}

// take returns idle memory, most recently used first. So a second copy is allocated only if
// snapshots come faster than they are saved.
func (w *Writer) take() *snapshotCopy {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.idle); n > 0 {
		h := w.idle[n-1]
		w.idle = w.idle[:n-1]
		return h
	}
	return new(snapshotCopy)
}

// copy makes h a copy of snap.
func (h *snapshotCopy) copy(snap Snapshot) {
	total := 0
	for _, f := range snap.Files {
		for _, t := range f.Tensors {
			total += len(t.Data)
		}
	}
	h.memory = slices.Grow(h.memory[:0], total)
	files := make([]File, len(snap.Files))
	for i, f := range snap.Files {
		files[i] = File{f.Name, make([]Tensor, len(f.Tensors))}
		for j, t := range f.Tensors {
			begin := len(h.memory)
			h.memory = append(h.memory, t.Data...)
			files[i].Tensors[j] = Tensor{t.Name, slices.Clone(t.Shape), h.memory[begin:]}
		}
	}
	h.snap = snap
	h.snap.Files = files
	h.snap.Spec = slices.Clone(snap.Spec)
	h.snap.Training = slices.Clone(snap.Training)
	h.snap.Tokenizer = slices.Clone(snap.Tokenizer)
	h.snap.Vocabulary = slices.Clone(snap.Vocabulary)
	h.snap.Outputs = slices.Clone(snap.Outputs)
	h.snap.Metrics = make(map[string]float64, len(snap.Metrics))
	for name, v := range snap.Metrics {
		h.snap.Metrics[name] = v
	}
}

// run saves queued snapshots until the queue is closed.
func (w *Writer) run(ctx context.Context) {
	defer close(w.done)
	for h := range w.queue {
		result := w.save(ctx, h.snap)
		w.mu.Lock()
		w.last = result.Err
		w.idle = append(w.idle, h)
		w.mu.Unlock()
		<-w.slots
		if w.cfg.Done != nil {
			w.cfg.Done(result)
		}
	}
}

// save saves one snapshot and deletes old checkpoints.
func (w *Writer) save(ctx context.Context, snap Snapshot) Result {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	start := time.Now()
	r := Result{Step: snap.Step}
	r.Path, r.Err = w.store.SaveOnce(ctx, snap)
	if r.Err == nil && w.cfg.Keep > 0 {
		r.RetainErr = w.store.retain(ctx, w.cfg.Keep, snap.Step)
	}
	r.Took = time.Since(start)
	return r
}

// Close waits until all submitted snapshots are saved, and returns the error of the last save. If
// ctx ends first, it cancels the saving and returns an error. It does not close the Store.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.closing)
		close(w.queue)
	}
	w.mu.Unlock()
	defer w.cancel()
	var late error
	select {
	case <-w.done:
	case <-ctx.Done():
		late = fmt.Errorf("the last checkpoint was not saved in time: %w", ctx.Err())
		w.cancel()
		select {
		case <-w.done:
		case <-time.After(closeGrace):
			return fmt.Errorf("%w; storage does not answer, so its goroutine was abandoned", late)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if late != nil && w.last != nil {
		return fmt.Errorf("%w: %w", late, w.last)
	}
	return w.last
}
