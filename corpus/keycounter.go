package corpus

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

const (
	counterBytes   = 128 << 20 // limit for keys and counters in memory
	maxCounterRuns = 64        // limit for sorted runs on disk; then they are merged into one
)

// keyCounter counts keys exactly in bounded memory. When its table would grow beyond the limit it
// writes the sorted keys to a run on disk. One merge at the end adds up the counts of all runs.
type keyCounter struct {
	dir   string
	limit int // bytes; a table of the least size is always allowed
	table tally
	runs  []*os.File
}

func newKeyCounter(dir string, limit int) *keyCounter {
	return &keyCounter{dir: dir, limit: limit, table: newTally()}
}

// add counts n occurrences of key. The caller may reuse key.
func (t *keyCounter) add(key []byte, n int64) error {
	size := t.table.size()
	if t.table.full() {
		size += len(t.table.slots) * slotBytes
	}
	if len(key) > shortBytes {
		size += len(key) + longKeyOverhead
	}
	if size > t.limit && t.table.count > 0 {
		if err := t.spill(); err != nil {
			return err
		}
	}
	t.table.add(key, n)
	return nil
}

// spill writes the table to a new run and empties it.
func (t *keyCounter) spill() error {
	if len(t.runs) == maxCounterRuns {
		merged, err := t.writeRun(func(write func([]byte, int64) error) error {
			return mergeRuns(t.runs, write)
		})
		if err != nil {
			return err
		}
		t.close()
		t.runs = append(t.runs, merged)
	}
	run, err := t.writeRun(t.table.sorted)
	if err != nil {
		return err
	}
	t.runs = append(t.runs, run)
	t.table.clear()
	return nil
}

// each yields every key once with its count, ordered by the keys' bytes. A key is valid until yield
// returns.
func (t *keyCounter) each(yield func(key []byte, count int64) error) error {
	if len(t.runs) == 0 {
		return t.table.sorted(yield)
	}
	if t.table.count > 0 {
		if err := t.spill(); err != nil {
			return err
		}
	}
	return mergeRuns(t.runs, yield)
}

// close removes the runs.
func (t *keyCounter) close() {
	for _, run := range t.runs {
		run.Close()
	}
	t.runs = t.runs[:0]
}

// writeRun writes the keys and counts that fill produces to a scratch file.
func (t *keyCounter) writeRun(fill func(write func([]byte, int64) error) error) (*os.File, error) {
	file, err := scratchFile(t.dir)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(file, blockBytes)
	err = fill(func(key []byte, count int64) error { return writeEntry(w, key, count) })
	if err = errors.Join(err, w.Flush()); err != nil {
		file.Close()
		return nil, fmt.Errorf("count tokens in %s: %w", t.dir, err)
	}
	return file, nil
}

// writeEntry writes a key's length, its bytes and its count.
func writeEntry(w *bufio.Writer, key []byte, count int64) error {
	entry := binary.AppendUvarint(w.AvailableBuffer(), uint64(len(key)))
	entry = append(entry, key...)
	_, err := w.Write(binary.AppendUvarint(entry, uint64(count)))
	return err
}

// scratchFile creates a file and removes its name, so the file disappears when it is closed or the
// process dies.
func scratchFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "scratch-*")
	if err != nil {
		return nil, fmt.Errorf("scratch file: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("scratch file: %w", err)
	}
	return file, nil
}

// run reads a sorted run. key and count are its current entry.
type run struct {
	r     *bufio.Reader
	key   []byte
	count int64
}

// next reads the next entry, or returns io.EOF.
func (r *run) next() error {
	size, err := binary.ReadUvarint(r.r)
	if err != nil {
		return err
	}
	r.key = slices.Grow(r.key[:0], int(size))[:size]
	if _, err := io.ReadFull(r.r, r.key); err != nil {
		return err
	}
	count, err := binary.ReadUvarint(r.r)
	r.count = int64(count)
	return err
}

// runHeap has the run with the least key on top.
type runHeap []*run

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return bytes.Compare(h[i].key, h[j].key) < 0 }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*run)) }
func (h *runHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// mergeRuns yields the keys of all runs in order, with their counts added up.
func mergeRuns(files []*os.File, yield func(key []byte, count int64) error) error {
	var open runHeap
	for _, file := range files {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		r := &run{r: bufio.NewReaderSize(file, blockBytes)}
		if err := r.next(); err != nil {
			return fmt.Errorf("read counts: %w", err)
		}
		open = append(open, r)
	}
	heap.Init(&open)
	var key []byte
	for open.Len() > 0 {
		key = append(key[:0], open[0].key...)
		var count int64
		for open.Len() > 0 && bytes.Equal(open[0].key, key) {
			count += open[0].count
			switch err := open[0].next(); {
			case err == nil:
				heap.Fix(&open, 0)
			case errors.Is(err, io.EOF):
				heap.Pop(&open)
			default:
				return fmt.Errorf("read counts: %w", err)
			}
		}
		if err := yield(key, count); err != nil {
			return err
		}
	}
	return nil
}
