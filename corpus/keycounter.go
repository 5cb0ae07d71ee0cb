package corpus

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

const (
	tallyBytes    = 128 << 20 // of keys and counters that a tally holds in memory
	tallyOverhead = 64        // bytes that a key costs beside its own, about
	maxTallyRuns  = 64        // sorted runs on disk before they are merged into one
)

// tally counts keys exactly in bounded memory: when its map is full it writes the keys, sorted,
// to a run on disk, and the counts of all runs are added up in one merge at the end.
type tally struct {
	dir    string
	limit  int // bytes
	bytes  int
	index  map[string]int // key to its place in counts
	counts []int64
	runs   []*os.File
}

func newTally(dir string, limit int) *tally {
	return &tally{dir: dir, limit: limit, index: map[string]int{}}
}

// add counts one occurrence. The key may be reused after the call.
func (t *tally) add(key []byte) error {
	if i, ok := t.index[string(key)]; ok {
		t.counts[i]++
		return nil
	}
	if t.bytes+len(key)+tallyOverhead > t.limit && len(t.index) > 0 {
		if err := t.spill(); err != nil {
			return err
		}
	}
	t.index[string(key)] = len(t.counts)
	t.counts = append(t.counts, 1)
	t.bytes += len(key) + tallyOverhead
	return nil
}

// spill empties the map into a new run.
func (t *tally) spill() error {
	if len(t.runs) == maxTallyRuns {
		merged, err := t.writeRun(func(write func([]byte, int64) error) error {
			return mergeRuns(t.runs, write)
		})
		if err != nil {
			return err
		}
		t.close()
		t.runs = append(t.runs, merged)
	}
	run, err := t.writeRun(t.sorted)
	if err != nil {
		return err
	}
	t.runs = append(t.runs, run)
	clear(t.index)
	t.counts, t.bytes = t.counts[:0], 0
	return nil
}

// sorted yields what is in memory in the order of the keys.
func (t *tally) sorted(yield func(key []byte, count int64) error) error {
	for _, key := range slices.Sorted(maps.Keys(t.index)) {
		if err := yield([]byte(key), t.counts[t.index[key]]); err != nil {
			return err
		}
	}
	return nil
}

// each yields every key once with its count, in the order of the keys' bytes. A key is valid
// until yield returns.
func (t *tally) each(yield func(key []byte, count int64) error) error {
	if len(t.runs) == 0 {
		return t.sorted(yield)
	}
	if len(t.index) > 0 {
		if err := t.spill(); err != nil {
			return err
		}
	}
	return mergeRuns(t.runs, yield)
}

// close removes the runs.
func (t *tally) close() {
	for _, run := range t.runs {
		run.Close()
	}
	t.runs = t.runs[:0]
}

// writeRun writes what fill yields to a scratch file: for each key its length, its bytes and its
// count.
func (t *tally) writeRun(fill func(write func([]byte, int64) error) error) (*os.File, error) {
	file, err := scratchFile(t.dir)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(file, blockBytes)
	var number []byte
	err = fill(func(key []byte, count int64) error {
		number = binary.AppendUvarint(number[:0], uint64(len(key)))
		number = append(number, key...)
		number = binary.AppendUvarint(number, uint64(count))
		_, err := w.Write(number)
		return err
	})
	if err = errors.Join(err, w.Flush()); err != nil {
		file.Close()
		return nil, fmt.Errorf("count tokens in %s: %w", t.dir, err)
	}
	return file, nil
}

// scratchFile makes a file without a name: it is gone when it is closed, whatever happens.
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

// run reads a sorted run; key and count are its next entry.
type run struct {
	r     *bufio.Reader
	key   []byte
	count int64
}

// next reads an entry; io.EOF says that there is none.
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
