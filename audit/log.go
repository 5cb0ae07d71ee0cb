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

// extension is the file name extension of every log.
const extension = ".jsonl"

// Ring describes a ring that a worker has joined.
type Ring struct {
	Run        int64  // orders the runs of a job: JobSpec.submitted
	Generation uint64 // orders the rings of a run
	From       int64  // steps done before it starts; its first step is From+1
	// Digest identifies the parameters after step From, as Commit.Digest does. It is not 0.
	Digest uint64
	World  int // workers
	Rank   int // of this worker
	// Replayed is the number of segments that were read again, beyond any step, to compute the
	// states of lanes that were lost.
	Replayed int64
	// Accumulate is the number of segments per lane and step. Step s starts with the sampler's step
	// (s-1)*Accumulate. 0 means 1.
	Accumulate int
	Batches    corpus.SamplerConfig
	// SyncEvery is the number of steps per round. A round's steps are committed together with its
	// last one. Rounds end at multiples of SyncEvery and with the job. 0 or 1: there are no rounds.
	SyncEvery int64
}

// Log is one worker's log. Steps must be logged by one goroutine at a time.
type Log struct {
	offset func(step int64, lane int) int64

	mu     sync.Mutex // guards the fields below
	file   *os.File   // nil after Close
	ring   *Ring
	failed error

	offsets []int64 // this and the next two are reused
	tokens  []byte
	line    []byte
}

// Open creates the log of a worker in dir, which it creates if necessary. The worker's id must be
// unique: a log of that name must not exist. offset returns the position of a lane's segment, as
// corpus.Sampler.Offset does; its steps count from 0.
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

// Ring records that the worker has joined a ring. All later lines belong to it.
func (l *Log) Ring(r Ring) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring = &r
	return l.write(&line{Ring: newRingLine(r)})
}

// Intend records that the worker is about to take a step (from 1) with the lanes [first,
// first+count). segment, from 0, is the index of the step's segment; inputs [T, count] are the
// tokens read.
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

// Commit is the end of a step, or of a round.
type Commit struct {
	Step      int64
	Digest    uint64 // of the parameters after it; the same on all ranks
	Skipped   bool   // it was not finite, so the parameters are those of before, unless Random
	Nonfinite int    // ranks whose loss or gradient was not finite
	Culprit   int    // the rank, if Nonfinite is 1
	Random    bool   // a random step was taken in the place of the skipped one
}

// Commit records that the worker has updated its parameters by a step, and by all other steps of
// its round, or that it has skipped them.
func (l *Log) Commit(c Commit) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring == nil {
		return l.fail(errors.New("a step without a ring"))
	}
	return l.write(&line{Commit: &commitLine{Generation: l.ring.Generation, Step: c.Step,
		Digest: c.Digest, Skipped: c.Skipped, Nonfinite: c.Nonfinite, Rank: c.Culprit,
		Random: c.Random}})
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

// write appends a line with one write(2). A failed write may leave a part of its line, so no line
// follows it.
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

// castagnoli returns the table of CRC-32C, which the standard library caches.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// line is one line of a log. Exactly one field is set.
type line struct {
	Ring   *ringLine   `json:"ring"`
	Read   *readLine   `json:"read"`
	Commit *commitLine `json:"commit"`
}

type ringLine struct {
	Run        int64           `json:"run"`
	Generation uint64          `json:"generation"`
	From       int64           `json:"from"`
	Digest     uint64          `json:"digest"`
	World      int             `json:"world"`
	Rank       int             `json:"rank"`
	Lanes      int             `json:"lanes"`
	BPTT       int             `json:"bptt"`
	Tokens     int64           `json:"tokens"`
	Seed       uint64          `json:"seed"`
	Sampling   corpus.Sampling `json:"sampling"`
	Accumulate int             `json:"accumulate"` // 0 or missing: 1
	SyncEvery  int64           `json:"sync_every"` // 0 or missing: 1
	Replayed   int64           `json:"replayed"`   // missing: 0
}

func newRingLine(r Ring) *ringLine {
	l := &ringLine{Run: r.Run, Generation: r.Generation, From: r.From, Digest: r.Digest,
		World: r.World, Rank: r.Rank, Lanes: r.Batches.Lanes, BPTT: r.Batches.BPTT,
		Tokens: r.Batches.Tokens, Seed: r.Batches.Seed, Sampling: r.Batches.Sampling,
		SyncEvery: r.SyncEvery, Replayed: r.Replayed}
	if r.Accumulate > 1 {
		l.Accumulate = r.Accumulate
	}
	return l
}

// of returns the line that the worker of a rank has of the same ring.
func (r ringLine) of(rank int) ringLine {
	r.Rank = rank
	return r
}

// segments returns the number of segments per lane and step.
func (r *ringLine) segments() int { return max(1, r.Accumulate) }

// within reports whether step is not the last of its round. The job's last step may end a round
// early; that is not known here.
func (r *ringLine) within(step int64) bool { return r.SyncEvery > 1 && step%r.SyncEvery != 0 }

func (r *ringLine) batches() corpus.SamplerConfig {
	return corpus.SamplerConfig{Tokens: r.Tokens, Lanes: r.Lanes, BPTT: r.BPTT, Seed: r.Seed,
		Sampling: r.Sampling}
}

type readLine struct {
	Generation uint64  `json:"generation"`
	Step       int64   `json:"step"`
	Segment    int     `json:"segment"` // index of the step's segment; missing: 0
	First      int     `json:"first"`
	Offsets    []int64 `json:"offsets"`
	CRC        uint32  `json:"crc"`
}

type commitLine struct {
	Generation uint64 `json:"generation"`
	Step       int64  `json:"step"`
	Digest     uint64 `json:"digest"`
	Skipped    bool   `json:"skipped"`   // this and the next two are missing if it was not
	Nonfinite  int    `json:"nonfinite"` // ranks
	Rank       int    `json:"rank"`      // the one that was not finite, if Nonfinite is 1
	Random     bool   `json:"random"`    // missing if no random step was taken instead
}

// append appends the line as JSON, with a line feed. It avoids encoding/json because it runs in
// every step.
func (e *line) append(b []byte) []byte {
	switch {
	case e.Ring != nil:
		r := e.Ring
		b = fmt.Appendf(b, `{"ring":{"run":%d,"generation":%d,"from":%d,"digest":%d,`+
			`"world":%d,"rank":%d,"lanes":%d,"bptt":%d,"tokens":%d,"seed":%d,"sampling":%q`,
			r.Run, r.Generation, r.From, r.Digest, r.World, r.Rank, r.Lanes, r.BPTT, r.Tokens,
			r.Seed, r.Sampling)
		if r.Accumulate != 0 {
			b = fmt.Appendf(b, `,"accumulate":%d`, r.Accumulate)
		}
		if r.SyncEvery > 1 {
			b = fmt.Appendf(b, `,"sync_every":%d`, r.SyncEvery)
		}
		if r.Replayed != 0 {
			b = fmt.Appendf(b, `,"replayed":%d`, r.Replayed)
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
		c := e.Commit
		b = fmt.Appendf(b, `{"commit":{"generation":%d,"step":%d,"digest":%d`, c.Generation,
			c.Step, c.Digest)
		if c.Skipped {
			b = fmt.Appendf(b, `,"skipped":true,"nonfinite":%d,"rank":%d`, c.Nonfinite, c.Rank)
		}
		if c.Random {
			b = append(b, `,"random":true`...)
		}
		b = append(b, "}}"...)
	}
	return append(b, '\n')
}
