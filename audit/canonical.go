package audit

import (
	"bytes"
	"strconv"
)

// canonical parses a read or commit line in the exact form that Log writes. It is faster than
// encoding/json, and a log may have millions of lines. It returns false for any other form.
func canonical(text []byte) (e line, ok bool) {
	s := scanner{rest: text, ok: true}
	if s.has(`{"read":{"generation":`) {
		read := &readLine{Generation: s.unsigned(64)}
		s.want(`,"step":`)
		read.Step = s.whole()
		if s.has(`,"segment":`) {
			read.Segment = int(s.unsigned(31))
		}
		s.want(`,"first":`)
		read.First = int(s.unsigned(31))
		s.want(`,"offsets":[`)
		read.Offsets = make([]int64, 0, 1+bytes.Count(s.rest, []byte(",")))
		for s.ok {
			read.Offsets = append(read.Offsets, s.whole())
			if !s.has(",") {
				break
			}
		}
		s.want(`],"crc":`)
		read.CRC = uint32(s.unsigned(32))
		e.Read = read
	} else if s.has(`{"commit":{"generation":`) {
		e.Commit = &commitLine{Generation: s.unsigned(64)}
		s.want(`,"step":`)
		e.Commit.Step = s.whole()
		s.want(`,"digest":`)
		e.Commit.Digest = s.unsigned(64)
		if s.has(`,"skipped":true,"nonfinite":`) {
			e.Commit.Skipped = true
			e.Commit.Nonfinite = int(s.unsigned(31))
			s.want(`,"rank":`)
			e.Commit.Rank = int(s.unsigned(31))
			e.Commit.Random = s.has(`,"random":true`)
		}
	} else {
		return line{}, false
	}
	s.want("}}")
	return e, s.ok && len(s.rest) == 0
}

// scanner reads words and numbers. ok turns false at the first one that is missing.
type scanner struct {
	rest []byte
	ok   bool
}

// has reports whether word comes next, and consumes it if it does.
func (s *scanner) has(word string) bool {
	rest, found := bytes.CutPrefix(s.rest, []byte(word))
	s.rest = rest
	return found
}

// want consumes word, which must come next.
func (s *scanner) want(word string) { s.ok = s.has(word) && s.ok }

// unsigned consumes a number without sign and leading zeros.
func (s *scanner) unsigned(bits int) uint64 {
	n := 0
	for n < len(s.rest) && '0' <= s.rest[n] && s.rest[n] <= '9' {
		n++
	}
	value, err := strconv.ParseUint(string(s.rest[:n]), 10, bits)
	s.ok = s.ok && err == nil && (n == 1 || s.rest[0] != '0')
	s.rest = s.rest[n:]
	return value
}

// whole consumes a step or an offset: a number that is not negative.
func (s *scanner) whole() int64 { return int64(s.unsigned(63)) }
