package examples

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"rondo/corpus"
)

// G: lanes of the global batch (--batch). n: examples of the set. S: segments of an epoch.

const (
	// maxWindow is the largest number of segments whose examples are sorted together.
	maxWindow = 64
	// minWindows is the least number of windows in an epoch that has as many segments.
	minWindows = 8
)

// A purpose makes an epoch's hashes for the two shuffles independent of each other, and of those of
// corpus.Sampler.
const (
	purposeExamples = iota + 16
	purposeSegments
)

// BatchesConfig describes the batches.
type BatchesConfig struct {
	Lanes int // G
	Seed  uint64
}

// Batches says which example every lane reads in every segment. An epoch has each example once, in
// S = ceil(n/G) segments, one of which may have lanes without an example.
//
// Each epoch shuffles the examples, and cuts them into windows of min(64, max(1, S/8)) segments. A
// window's examples are sorted by length, so that the examples of a segment need little padding,
// and the segments of a window are shuffled.
//
// Everything is a pure function of the set, the config and the segment. Two windows are kept; a new
// one takes O(w log w) for its w examples. Segments and lanes count from 0. The methods may be
// called concurrently.
type Batches struct {
	set      *Set
	cfg      BatchesConfig
	segments int64 // S
	size     int64 // segments of a window
	sorted   bool  // one window, not shuffled

	mu     sync.Mutex
	kept   [2]window // the second is the last used
	sorter []sortKey
}

// window holds examples in the order of its segments and their lanes.
type window struct {
	epoch, index int64
	examples     []uint32 // empty: nothing
}

// sortKey orders the examples of a window by length.
type sortKey struct {
	length, targets int32
	place, example  uint32
}

// NewBatches deals the set to the lanes for training.
func NewBatches(set *Set, cfg BatchesConfig) (*Batches, error) {
	if cfg.Lanes < 1 || cfg.Lanes > corpus.MaxLanes {
		return nil, fmt.Errorf("--batch %d is not in [1, %d]", cfg.Lanes, corpus.MaxLanes)
	}
	lanes := int64(cfg.Lanes)
	segments := (set.Len() + lanes - 1) / lanes
	return &Batches{
		set:      set,
		cfg:      cfg,
		segments: segments,
		size:     min(maxWindow, max(1, segments/minWindows)),
	}, nil
}

// NewEvaluation deals each example of the set once, sorted by length, in SegmentsPerEpoch segments.
// Only the last may have lanes without an example.
func NewEvaluation(set *Set, lanes int) (*Batches, error) {
	b, err := NewBatches(set, BatchesConfig{Lanes: lanes})
	if err != nil {
		return nil, err
	}
	b.size, b.sorted = b.segments, true
	return b, nil
}

// Config returns the config.
func (b *Batches) Config() BatchesConfig { return b.cfg }

// SegmentsPerEpoch is ceil(n/G).
func (b *Batches) SegmentsPerEpoch() int64 { return b.segments }

// Epoch returns the epoch of a segment.
func (b *Batches) Epoch(segment int64) int64 {
	if segment < 0 {
		panic(fmt.Sprintf("examples: segment %d", segment))
	}
	return segment / b.segments
}

// Example returns the number of the example that the lane reads in the segment, or -1 if it reads
// none.
func (b *Batches) Example(segment int64, lane int) int64 {
	if lane < 0 || lane >= b.cfg.Lanes {
		panic(fmt.Sprintf("examples: lane %d of %d", lane, b.cfg.Lanes))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.batch(segment)
	if lane >= len(batch) {
		return -1
	}
	return int64(batch[lane])
}

// Steps returns the largest Length of the segment's examples, of all lanes.
func (b *Batches) Steps(segment int64) int { return b.longest(segment, b.set.Length) }

// TargetSteps returns the largest number of Targets of the segment's examples, of all lanes.
func (b *Batches) TargetSteps(segment int64) int { return b.longest(segment, b.set.Targets) }

func (b *Batches) longest(segment int64, of func(int64) int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := 0
	for _, example := range b.batch(segment) {
		most = max(most, of(int64(example)))
	}
	return most
}

// Targets returns the number of targets that the lanes [first, first+count) have in the segment.
func (b *Batches) Targets(segment int64, first, count int) int64 {
	return b.sum(segment, first, count, b.set.Targets)
}

// Tokens returns the number of tokens that the lanes [first, first+count) read in the segment.
func (b *Batches) Tokens(segment int64, first, count int) int64 {
	return b.sum(segment, first, count, b.set.Length)
}

func (b *Batches) sum(segment int64, first, count int, of func(int64) int) int64 {
	if first < 0 || count < 0 || first+count > b.cfg.Lanes {
		panic(fmt.Sprintf("examples: lanes [%d, %d) of %d", first, first+count, b.cfg.Lanes))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.batch(segment)
	var sum int64
	for _, example := range batch[min(first, len(batch)):min(first+count, len(batch))] {
		sum += int64(of(int64(example)))
	}
	return sum
}

// batch returns the examples of a segment; lanes beyond them have none. The caller holds mu, and
// does not keep the slice.
func (b *Batches) batch(segment int64) []uint32 {
	epoch := b.Epoch(segment)
	index, within := segment%b.segments/b.size, segment%b.segments%b.size
	w := b.window(epoch, index)
	lanes := int64(b.cfg.Lanes)
	count := int64(len(w.examples))
	place := within
	if !b.sorted {
		batches := corpus.NewPermutation(uint64((count+lanes-1)/lanes),
			corpus.Hash3(b.epochKey(epoch, purposeSegments), uint64(index), 0))
		place = int64(batches.At(uint64(within)))
	}
	return w.examples[place*lanes : min(count, (place+1)*lanes)]
}

func (b *Batches) epochKey(epoch int64, purpose uint64) uint64 {
	return corpus.Hash3(b.cfg.Seed, uint64(epoch), purpose)
}

// window returns the examples of a window, sorted.
func (b *Batches) window(epoch, index int64) *window {
	last := &b.kept[1]
	if last.epoch == epoch && last.index == index && len(last.examples) > 0 {
		return last
	}
	b.kept[0], b.kept[1] = b.kept[1], b.kept[0]
	if last.epoch == epoch && last.index == index && len(last.examples) > 0 {
		return last
	}
	width := b.size * int64(b.cfg.Lanes)
	from, to := index*width, min((index+1)*width, b.set.Len())
	order := corpus.NewPermutation(uint64(b.set.Len()), b.epochKey(epoch, purposeExamples))
	b.sorter = slices.Grow(b.sorter[:0], int(to-from))
	for place := range to - from {
		example := from + place
		if !b.sorted {
			example = int64(order.At(uint64(example)))
		}
		b.sorter = append(b.sorter, sortKey{int32(b.set.Length(example)),
			int32(b.set.Targets(example)), uint32(place), uint32(example)})
	}
	slices.SortFunc(b.sorter, func(x, y sortKey) int {
		return cmp.Or(cmp.Compare(x.length, y.length), cmp.Compare(x.targets, y.targets),
			cmp.Compare(x.place, y.place))
	})
	last.epoch, last.index, last.examples = epoch, index, last.examples[:0]
	for _, e := range b.sorter {
		last.examples = append(last.examples, e.example)
	}
	if b.sorted { // there is no other window
		b.sorter = nil
	}
	return last
}
