package allreduce_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
)

// honest returns what rank 1 of a ring of two sends in the collectives of scriptedSums. Its numbers
// are 2 and rank 0's are 1, so every sum is 3.
func honest(sums []allreduce.Sum, chunkBytes int) []letter {
	var letters []letter
	for i, s := range sums {
		n, most := len(s.Buf), chunkBytes/s.Element.Bytes()
		middle := n - n/2
		for step, segment := range [2][2]int{{0, middle}, {middle, n}} {
			for at := segment[0]; at < segment[1]; at += most {
				h := allreduce.Header{
					Generation: generation, Sequence: uint64(i + 1), Element: s.Element,
					Phase: allreduce.ReduceScatter + allreduce.Phase(step), Step: step,
					Offset: at, Length: min(most, segment[1]-at), Total: n,
				}
				letters = append(letters, letter{h, numbers(s.Element, h.Length, 2+step)})
			}
		}
	}
	return letters
}

// numbers returns n numbers of value 2 or 3 in wire form.
func numbers(e allreduce.Element, n, value int) []byte {
	switch {
	case e == allreduce.BFloat16 && value == 2:
		return slices.Repeat([]byte{0x00, 0x40}, n)
	case e == allreduce.BFloat16:
		return slices.Repeat([]byte{0x40, 0x40}, n)
	case e == allreduce.Float16 && value == 2:
		return slices.Repeat([]byte{0x00, 0x40}, n)
	case e == allreduce.Float16:
		return slices.Repeat([]byte{0x00, 0x42}, n)
	}
	return allreduce.Bytes(slices.Repeat([]float32{float32(value)}, n))
}

// scriptedSums returns the sums that are queued together.
func scriptedSums() []allreduce.Sum {
	sums := []allreduce.Sum{
		{Buf: make([]float32, 41)},
		{Buf: make([]float32, 30), Element: allreduce.BFloat16, Residual: make([]float32, 30)},
		{Buf: make([]float32, 1)},
		{Buf: make([]float32, 17), Element: allreduce.Float16},
	}
	for _, s := range sums {
		for i := range s.Buf {
			s.Buf[i] = 1
		}
	}
	return sums
}

// deface changes letters as script says, two bytes a change: which letter, and how. Each letter is
// changed at most once, because a cut followed by a fill may restore it.
func deface(right []letter, script []byte) []letter {
	letters := slices.Clone(right)
	for ; len(script) >= 2 && len(letters) > 0; script = script[2:] {
		i := int(script[0]) % len(letters)
		l := letters[i]
		by, change := 1+int(script[1])/10, script[1]%10
		if change > 2 && !slices.ContainsFunc(right, l.equals) {
			continue
		}
		switch change {
		case 0: // lost
			letters = slices.Delete(letters, i, i+1)
			continue
		case 1: // twice, the second time late
			j := min(i+by, len(letters))
			letters = slices.Insert(letters, j, l)
			continue
		case 2: // in another's place
			j := (i + by) % len(letters)
			letters[i], letters[j] = letters[j], letters[i]
			continue
		case 3:
			l.header.Generation += allreduce.Generation(by)
		case 4: // more than it says
			l.payload = slices.Concat(l.payload, make([]byte, by)) // longer than its header says
		case 5: // shorter
			l.payload = l.payload[:max(0, len(l.payload)-by)]
		case 6:
			l.header.Element = (l.header.Element + allreduce.Element(by)) % 4
		case 7: // right length, wrong content
			l.header.Length += by
			l.payload = slices.Concat(l.payload, make([]byte, by*4))
		case 8:
			l.header.Phase = (l.header.Phase + allreduce.Phase(by)) % 6
		case 9:
			l.header.Sequence += uint64(by)
			l.header.Offset -= by % 3
			l.header.Step += by % 2
		}
		letters[i] = l
	}
	return letters
}

func (l letter) equals(other letter) bool {
	return l.header == other.header && slices.Equal(l.payload, other.payload)
}

// scripted delivers letters to a ring, and then the link's own messages.
type scripted struct {
	allreduce.Predecessor
	letters []letter
}

func (s *scripted) Receive(m *allreduce.Message) error {
	if len(s.letters) == 0 {
		return s.Predecessor.Receive(m) // signs of life, until the link ends
	}
	l := s.letters[0]
	s.letters = s.letters[1:]
	m.Header, m.Pieces, m.OnRelease = l.header, append(m.Pieces[:0], l.payload), nil
	return nil
}

// FuzzScript delivers altered predecessor messages to a ring with queued sums: late, doubled, out
// of order, lost, or of another generation, element, phase or length. Each sum is right or fails
// within the timeouts.
func FuzzScript(f *testing.F) {
	f.Add([]byte{})
	for change := range byte(10) {
		f.Add([]byte{1, change})
		f.Add([]byte{6, 10 + change, 2, change})
	}
	const chunkBytes = 32
	f.Fuzz(func(t *testing.T, script []byte) {
		sums := scriptedSums()
		right := honest(sums, chunkBytes)
		played := deface(right, script)
		synctest.Test(t, func(t *testing.T) { playScript(t, sums, right, played, chunkBytes) })
	})
}

func playScript(
	t *testing.T, sums []allreduce.Sum, right, played []letter, chunkBytes int,
) {
	const timeout = time.Minute
	nodes := connect(2)
	nodes[0].Predecessor = &scripted{nodes[0].Predecessor, played}
	ring, err := allreduce.New(allreduce.Config{
		World: 2, Generation: generation, ChunkBytes: chunkBytes,
		ChunkTimeout: timeout / 2, StepTimeout: timeout,
	}, nodes[0].Links)
	if err != nil {
		t.Fatal(err)
	}
	breathe(t, nodes[1].Successor, nodes[1].Predecessor)
	go func() { // rank 0's messages are discarded
		var m allreduce.Message
		for nodes[1].Predecessor.Receive(&m) == nil {
			m.Release()
		}
	}()
	start := time.Now()
	var pending []*allreduce.Pending
	for _, s := range sums {
		p, err := ring.Start(context.Background(), s)
		if err != nil {
			break // the first sums have failed
		}
		pending = append(pending, p)
	}
	for i, p := range pending {
		if p.Wait(context.Background()) != nil {
			continue
		}
		for at, got := range sums[i].Buf {
			if math.Float32bits(got) != math.Float32bits(3) {
				t.Errorf("sum %d is %v at %d, want 3 or an error", i, got, at)
			}
		}
	}
	if took := time.Since(start); took > timeout*5/4 {
		t.Errorf("it took %v", took)
	}
	same := len(played) >= len(right) &&
		slices.EqualFunc(right, played[:len(right)], letter.equals)
	if whole := ring.Err() == nil; whole != same {
		t.Errorf("messages that are right, and come first: %v; the ring: %v", same, ring.Err())
	}
	ring.Close()
	nodes[1].Successor.Close()
	nodes[1].Predecessor.Close()
}
