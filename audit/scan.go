package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
)

// Limits on the logs.
const (
	// maxLine is the longest line in bytes: MaxLanes offsets of up to 20 characters, and a margin.
	maxLine = 32 << 20
	// maxSections bounds the memory for all logs. There is one section per worker and ring.
	maxSections = 1 << 20
	// maxInputs bounds the tokens of one read line: T times its lanes.
	maxInputs = 1 << 28
	// maxAccumulate bounds the segments per lane and step.
	maxAccumulate = 1 << 20
	// maxStep bounds steps, so that the number of a segment, step * maxAccumulate, fits an int64.
	maxStep = 1 << 42
)

// lines reads a log line by line and tracks the position in the file.
type lines struct {
	*bufio.Scanner
	end  int64 // end of the line, relative to where reading began
	torn bool  // the last line has no line feed
}

func newLines(r io.Reader) *lines {
	l := &lines{Scanner: bufio.NewScanner(r)}
	l.Buffer(nil, maxLine)
	l.Split(func(data []byte, atEOF bool) (advance int, token []byte, err error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			advance, token = i+1, data[:i]
		} else if atEOF && len(data) > 0 {
			advance, token, l.torn = len(data), data, true
		}
		l.end += int64(advance)
		return advance, token, nil
	})
	return l
}

// parse parses a line. The error completes the sentence "line N ...".
func parse(text []byte) (line, error) {
	e, ok := canonical(text)
	if !ok {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if e = (line{}); decoder.Decode(&e) != nil {
			return e, errors.New("is not a line of an audit log")
		}
		if decoder.InputOffset() != int64(len(text)) {
			return e, errors.New("has something after its end")
		}
	}
	kinds := 0
	for _, set := range []bool{e.Ring != nil, e.Read != nil, e.Commit != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return e, errors.New("is none of ring, read and commit")
	case e.Ring != nil && (e.Ring.From < 0 || e.Ring.From > maxStep || e.Ring.World < 1 ||
		e.Ring.SyncEvery < 0 || e.Ring.Rank < 0 || e.Ring.Rank >= e.Ring.World ||
		e.Ring.Replayed < 0 || e.Ring.Accumulate < 0 || e.Ring.Accumulate > maxAccumulate):
		return e, errors.New("describes an impossible ring")
	case e.Read != nil && (e.Read.Step < 1 || e.Read.Step > maxStep || e.Read.Segment < 0 ||
		e.Read.First < 0 || len(e.Read.Offsets) == 0):
		return e, errors.New("is not a possible read")
	case e.Commit != nil && (e.Commit.Step < 1 || e.Commit.Step > maxStep):
		return e, errors.New("commits an impossible step")
	case e.Commit != nil && (e.Commit.Nonfinite < 0 || e.Commit.Rank < 0):
		return e, errors.New("is not a possible commit")
	}
	return e, nil
}

// section is the part of a log that belongs to one ring.
type section struct {
	file       string
	line       int // line number of the ring line
	begin, end int64
	ring       ringLine
	attempt    int   // number of earlier sections of the same ring in the file
	last       int64 // largest step that it commits
	// digests has the digests of the parameters after those of its steps that prover.wanted names.
	digests map[int64]uint64
}

// sameRing reports whether two sections have the same run and generation.
func (s *section) sameRing(t *section) bool {
	return s.ring.Run == t.ring.Run && s.ring.Generation == t.ring.Generation
}

// scan finds the sections of all logs. It does not parse read lines, which are the most numerous;
// proveRing does.
func (p *prover) scan(ctx context.Context) error {
	names, err := fs.Glob(p.logs, "*"+extension)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("no audit log (*%s) is there", extension)
	}
	p.report.Workers = len(names)
	for _, name := range names {
		if err := p.scanFile(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	slices.SortStableFunc(p.sections, func(a, b *section) int {
		return cmp.Or(cmp.Compare(a.ring.Run, b.ring.Run),
			cmp.Compare(a.ring.Generation, b.ring.Generation),
			cmp.Compare(a.attempt, b.attempt))
	})
	return nil
}

func (p *prover) scanFile(ctx context.Context, name string) error {
	file, err := p.logs.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	var current *section
	all := newLines(file)
	number := 0
	for all.Scan() {
		number++
		if err := ctx.Err(); err != nil {
			return err
		}
		if all.torn {
			p.report.Torn++ // its writer died while writing it, before acting on it
			break
		}
		if current != nil && bytes.HasPrefix(all.Bytes(), []byte(`{"read":`)) {
			current.end = all.end
			continue
		}
		if bytes.HasPrefix(all.Bytes(), []byte(`{"ring":`)) &&
			!bytes.Contains(all.Bytes(), []byte(`"digest":`)) {
			return fmt.Errorf("line %d has no digest: a rondo of an older version wrote the log, "+
				"and one of that version can audit it", number)
		}
		entry, err := parse(all.Bytes())
		switch {
		case err != nil:
			p.find("%s line %d %v", name, number, err)
		case entry.Ring != nil:
			if len(p.sections) == maxSections {
				return fmt.Errorf("more than %d ring lines in all logs", maxSections)
			}
			before := current
			current = &section{file: name, line: number, begin: all.end, ring: *entry.Ring}
			if before != nil && before.sameRing(current) {
				current.attempt = before.attempt + 1
			}
			p.sections = append(p.sections, current)
		case current == nil:
			p.find("%s line %d is before the first ring", name, number)
		case entry.Commit != nil:
			current.last = max(current.last, entry.Commit.Step)
		}
		if current != nil {
			current.end = all.end
		}
	}
	if errors.Is(all.Err(), bufio.ErrTooLong) {
		p.find("%s line %d is longer than %d bytes; the rest is not read", name, number+1, maxLine)
		return nil
	}
	return all.Err()
}

// stream reads a section's lines in order.
type stream struct {
	*section
	source io.Closer
	lines  *lines
	number int // line number in the file
	head   line
	step   int64 // step of head
	done   bool

	lastRead, lastCommit   int64
	lastFirst, lastSegment int // of the last read line
	// differs: after lastCommit its parameters were not those of most workers.
	differs bool
}

// open starts reading a section.
func (p *prover) open(s *section) (*stream, error) {
	file, err := p.logs.Open(s.file)
	if err != nil {
		return nil, err
	}
	if seeker, ok := file.(io.Seeker); ok {
		_, err = seeker.Seek(s.begin, io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, file, s.begin)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &stream{section: s, source: file, number: s.line,
		lines:    newLines(io.LimitReader(file, s.end-s.begin)),
		lastRead: s.ring.From, lastCommit: s.ring.From}, nil
}

// collect reads the digests of the wanted steps from a section's commit lines.
func (p *prover) collect(ctx context.Context, s *section) error {
	from, err := p.open(s)
	if err != nil {
		return err
	}
	defer from.source.Close()
	s.digests = map[int64]uint64{}
	for from.lines.Scan() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !bytes.HasPrefix(from.lines.Bytes(), []byte(`{"commit":`)) {
			continue
		}
		entry, err := parse(from.lines.Bytes())
		if err == nil && p.wanted[entry.Commit.Step] {
			s.digests[entry.Commit.Step] = entry.Commit.Digest
		}
	}
	return from.lines.Err()
}

// worker returns the worker's id, which is the log's file name without extension.
func (s *section) worker() string {
	return s.file[:len(s.file)-len(path.Ext(s.file))]
}

// next advances head to the next valid line. It reports invalid ones.
func (p *prover) next(s *stream) error {
	for s.lines.Scan() {
		s.number++
		entry, err := parse(s.lines.Bytes())
		if err != nil {
			if bytes.HasPrefix(s.lines.Bytes(), []byte(`{"read":`)) { // others are reported
				p.find("%s line %d %v", s.file, s.number, err)
			}
			continue
		}
		generation := s.ring.Generation
		if entry.Read != nil {
			s.step, generation = entry.Read.Step, entry.Read.Generation
		} else if entry.Commit != nil {
			s.step, generation = entry.Commit.Step, entry.Commit.Generation
		}
		switch {
		case generation != s.ring.Generation:
			p.find("%s line %d has generation %d, in the ring of generation %d", s.file, s.number,
				generation, s.ring.Generation)
		case s.step < max(s.lastRead, s.lastCommit):
			p.find("%s line %d goes back from step %d to %d within generation %d", s.file,
				s.number, max(s.lastRead, s.lastCommit), s.step, generation)
		default:
			s.head = entry
			return nil
		}
	}
	s.done = true
	return s.lines.Err()
}
