package audit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"rondo/corpus"
)

// extension ends the name of every log.
const extension = ".jsonl"

// Ring is a ring that a worker is in.
type Ring struct {
	Run        int64  // orders the runs of a job: JobSpec.submitted
	Generation uint64 // orders the rings of a run
	From       int64  // steps that are done when it starts: its first is From+1
	// Committed is the generation in which the state that it starts from was committed; this one
	// where the state is from a checkpoint or from scratch. 0: not known.
	Committed uint64
	World     int // workers
	// Accumulate is how many segments of each lane a step reads, from the sampler's step
	// (step-1)*Accumulate on. 0: 1.
	Accumulate int
	Batches    corpus.SamplerConfig
	// SyncEvery is how many steps a round has, which is committed with its last; 0 or 1: there are
	// none. Rounds end at its multiples, and with the job.
	SyncEvery int64
}

// Log is one worker's log. One goroutine at a time does steps with it.
type Log struct {
	offset func(step int64, lane int) int64

	mu     sync.Mutex // guards all that follows
	file   *os.File   // nil after Close
	ring   *Ring
	failed error

	offsets []int64 // used again, as are
	tokens  []byte
	line    []byte
}

// Open starts the log of a worker in a folder, which it makes. The worker's id is its own: a log
// of that name must not be there. Offset says where the worker reads a lane, as
// corpus.Sampler.Offset does, whose steps count from 0.
func Open(dir, worker string, offset func(step int64, lane int) int64) (*Log, error) {
	if worker == "" || strings.ContainsAny(worker, `/\`) || strings.HasPrefix(worker, ".") {
		return nil, fmt.Errorf("audit log of worker %q: this cannot name a file", worker)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("--audit-dir: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, worker+extension),
		os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("--audit-dir: %w", err)
	}
	return &Log{offset: offset, file: file}, nil
}

// Ring begins the ring of a generation: what follows is in it.
func (l *Log) Ring(r Ring) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring = &r
	return l.write(&line{Ring: newRingLine(r)})
}

// Intend says that the worker is about to take a step (from 1) with the lanes [first,
// first+count), whose inputs [T, count] it has read: one of the step's segments, from 0.
func (l *Log) Intend(step int64, segment, first, count int, inputs []int32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring == nil {
		return l.fail(errors.New("a step without a ring"))
	}
	l.offsets = l.offsets[:0]
	for lane := first; lane < first+count; lane++ {
		l.offsets = append(l.offsets,
			l.offset((step-1)*int64(max(1, l.ring.Accumulate))+int64(segment), lane))
	}
	return l.write(&line{Read: &readLine{Generation: l.ring.Generation, Step: step,
		Segment: segment, First: first, Offsets: l.offsets, CRC: l.checksum(inputs)}})
}

// Commit says that the worker has updated its parameters by a step, and by all others of its round.
func (l *Log) Commit(step int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring == nil {
		return l.fail(errors.New("a step without a ring"))
	}
	return l.write(&line{Commit: &commitLine{Generation: l.ring.Generation, Step: step}})
}

// Close closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	file := l.file
	l.file = nil
	return file.Close()
}

// write appends a line by one write(2). After a line that failed, which may be there in part, no
// other is written.
func (l *Log) write(entry *line) error {
	if l.failed != nil {
		return l.failed
	}
	if l.file == nil {
		return l.fail(os.ErrClosed)
	}
	l.line = entry.append(l.line[:0])
	if _, err := l.file.Write(l.line); err != nil {
		l.failed = l.fail(err)
		return l.failed
	}
	return nil
}

func (l *Log) fail(err error) error {
	return fmt.Errorf("audit log: %w (without --audit-dir the job goes on without one)", err)
}

func (l *Log) checksum(inputs []int32) uint32 {
	l.tokens = l.tokens[:0]
	for _, id := range inputs {
		l.tokens = binary.LittleEndian.AppendUint32(l.tokens, uint32(id))
	}
	return crc32.Checksum(l.tokens, castagnoli())
}

// castagnoli is CRC-32C's table; the standard library keeps it.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// line is one line of a log; one of its fields is set.
type line struct {
	Ring   *ringLine   `json:"ring"`
	Read   *readLine   `json:"read"`
	Commit *commitLine `json:"commit"`
}

type ringLine struct {
	Run        int64           `json:"run"`
	Generation uint64          `json:"generation"`
	From       int64           `json:"from"`
	Committed  uint64          `json:"committed"` // 0, or not there: not known
	World      int             `json:"world"`
	Lanes      int             `json:"lanes"`
	BPTT       int             `json:"bptt"`
	Tokens     int64           `json:"tokens"`
	Seed       uint64          `json:"seed"`
	Sampling   corpus.Sampling `json:"sampling"`
	Accumulate int             `json:"accumulate"` // 0, or not there: 1
	SyncEvery  int64           `json:"sync_every"` // 0, or not there: 1
}

func newRingLine(r Ring) *ringLine {
	l := &ringLine{Run: r.Run, Generation: r.Generation, From: r.From, Committed: r.Committed,
		World: r.World, Lanes: r.Batches.Lanes, BPTT: r.Batches.BPTT, Tokens: r.Batches.Tokens,
		Seed: r.Batches.Seed, Sampling: r.Batches.Sampling, SyncEvery: r.SyncEvery}
	if r.Accumulate > 1 {
		l.Accumulate = r.Accumulate
	}
	return l
}

// segments is how many segments of each lane a step reads.
func (r *ringLine) segments() int { return max(1, r.Accumulate) }

// within says whether a step is one of a round that does not end with it, as far as that is known:
// the job may.
func (r *ringLine) within(step int64) bool { return r.SyncEvery > 1 && step%r.SyncEvery != 0 }

func (r *ringLine) batches() corpus.SamplerConfig {
	return corpus.SamplerConfig{Tokens: r.Tokens, Lanes: r.Lanes, BPTT: r.BPTT, Seed: r.Seed,
		Sampling: r.Sampling}
}

type readLine struct {
	Generation uint64  `json:"generation"`
	Step       int64   `json:"step"`
	Segment    int     `json:"segment"` // of the step's, from 0; not there: 0
	First      int     `json:"first"`
	Offsets    []int64 `json:"offsets"`
	CRC        uint32  `json:"crc"`
}

type commitLine struct {
	Generation uint64 `json:"generation"`
	Step       int64  `json:"step"`
}

// append writes the line as JSON, with its end. It is by hand because it is in every step's way.
func (e *line) append(b []byte) []byte {
	switch {
	case e.Ring != nil:
		r := e.Ring
		b = fmt.Appendf(b, `{"ring":{"run":%d,"generation":%d,"from":%d,"committed":%d,`+
			`"world":%d,"lanes":%d,"bptt":%d,"tokens":%d,"seed":%d,"sampling":%q`, r.Run,
			r.Generation, r.From, r.Committed, r.World, r.Lanes, r.BPTT, r.Tokens, r.Seed,
			r.Sampling)
		if r.Accumulate != 0 {
			b = fmt.Appendf(b, `,"accumulate":%d`, r.Accumulate)
		}
		if r.SyncEvery > 1 {
			b = fmt.Appendf(b, `,"sync_every":%d`, r.SyncEvery)
		}
		b = append(b, "}}"...)
	case e.Read != nil:
		r := e.Read
		b = fmt.Appendf(b, `{"read":{"generation":%d,"step":%d`, r.Generation, r.Step)
		if r.Segment != 0 {
			b = fmt.Appendf(b, `,"segment":%d`, r.Segment)
		}
		b = fmt.Appendf(b, `,"first":%d,"offsets":[`, r.First)
		for i, offset := range r.Offsets {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, offset, 10)
		}
		b = fmt.Appendf(b, `],"crc":%d}}`, r.CRC)
	case e.Commit != nil:
		b = fmt.Appendf(b, `{"commit":{"generation":%d,"step":%d}}`, e.Commit.Generation,
			e.Commit.Step)
	}
	return append(b, '\n')
}
