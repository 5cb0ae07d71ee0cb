package corpus

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
)

const (
	// pieceBytes bounds a piece of text. A subword tokenizer is given one at a time.
	pieceBytes = 128 << 10
	// blockPieces bounds the pieces of a block: lines and documents may be short, or empty.
	blockPieces = 16 << 10
	// maxProcessors bounds the processors that read and tokenise a corpus, and so the memory.
	maxProcessors = 16
	// aheadBlocks is how many blocks of each open file wait for a processor.
	aheadBlocks = 2
)

// block is a part of a corpus that is tokenised without the rest of it.
type block struct {
	text   []byte // normalised
	pieces []piece
}

// piece is a part of a block's text: a document, or with LineEnds a line, or a part of one.
type piece struct {
	end         int  // in the block's text; it begins where the piece before ends
	first, last bool // of the document or line
	mark        bool // an EndOfText follows
	document    bool // the document ends here
}

// each calls do with each piece.
func (b block) each(do func(text []byte, p piece) error) error {
	start := 0
	for _, p := range b.pieces {
		if err := do(b.text[start:p.end], p); err != nil {
			return err
		}
		start = p.end
	}
	return nil
}

// cutter is a sink that cuts documents into pieces, and collects these in blocks. Where it cuts
// depends on the document alone.
type cutter struct {
	unit  Unit
	emit  func(block) error
	fresh func() []byte // memory for a block's text
	now   block
	start int  // of the piece that has no end yet
	begun bool // a piece of the document or line has ended
}

func newCutter(unit Unit, fresh func() []byte, emit func(block) error) *cutter {
	return &cutter{unit: unit, emit: emit, fresh: fresh, now: block{text: fresh()}}
}

func (c *cutter) text(text []byte) error {
	for len(text) > 0 {
		if open := c.now.text[c.start:]; len(open) == pieceBytes {
			at, err := c.unit.cut(open)
			if err != nil {
				return err
			}
			if err := c.close(c.start+at, false); err != nil {
				return err
			}
		}
		n := min(len(text), pieceBytes-(len(c.now.text)-c.start))
		c.now.text, text = append(c.now.text, text[:n]...), text[n:]
	}
	return nil
}

// end ends a document or a line.
func (c *cutter) end() error {
	if len(c.now.text) == c.start {
		return nil
	}
	return c.close(len(c.now.text), true)
}

// close ends a piece, and passes a full block on.
func (c *cutter) close(end int, last bool) error {
	c.now.pieces = append(c.now.pieces, piece{end: end, first: !c.begun, last: last})
	c.start, c.begun = end, !last
	if c.start < pieceBytes && len(c.now.pieces) < blockPieces {
		return nil
	}
	return c.flush()
}

// flush passes the ended pieces on.
func (c *cutter) flush() error {
	full := c.now
	c.now = block{text: append(c.fresh(), full.text[c.start:]...)}
	full.text, c.start = full.text[:c.start], 0
	if len(full.pieces) == 0 {
		return nil
	}
	return c.emit(full)
}

// mark ends the last piece and puts an EndOfText after it.
func (c *cutter) mark() error {
	p, err := c.lastPiece(func(p *piece) bool { return !p.mark && !p.document })
	if err == nil {
		p.mark = true
	}
	return err
}

// document ends the document after the last piece.
func (c *cutter) document() error {
	p, err := c.lastPiece(func(p *piece) bool { return !p.document })
	if err == nil {
		p.document = true
	}
	return err
}

// lastPiece returns the last piece if it is fit, else a new empty one.
func (c *cutter) lastPiece(fit func(*piece) bool) (*piece, error) {
	if n := len(c.now.pieces); n > 0 && fit(&c.now.pieces[n-1]) {
		return &c.now.pieces[n-1], nil
	}
	if len(c.now.pieces) >= blockPieces {
		if err := c.flush(); err != nil {
			return nil, err
		}
	}
	c.now.pieces = append(c.now.pieces, piece{end: c.start})
	return &c.now.pieces[len(c.now.pieces)-1], nil
}

// cut returns where a piece of text that is too long is cut: behind a whole token, or of subwords
// behind the last word that ends in the second half, or else behind the last character.
func (u Unit) cut(text []byte) (int, error) {
	switch u {
	case Word:
		at := bytes.LastIndexFunc(text, unicode.IsSpace)
		if at < 0 {
			return 0, errLongWord()
		}
		_, n := utf8.DecodeRune(text[at:])
		return at + n, nil
	case Subword:
		for i := len(text) - 1; i > len(text)/2; i-- {
			if text[i] == ' ' && text[i-1] > ' ' {
				return i, nil
			}
		}
	case Char:
	}
	return completeRunes(text), nil
}

// cutDocument scans a document and cuts it.
func (t Tokenizer) cutDocument(ctx context.Context, text io.Reader, c *cutter) error {
	lines := &lineMarker{to: c, mark: c.mark}
	var to sink = c
	if t.Ends == LineEnds {
		to = lines
	}
	if err := t.scan(ctx, text, to); err != nil {
		return err
	}
	if t.Ends == DocumentEnds || lines.begun {
		if err := c.mark(); err != nil {
			return err
		}
	}
	return c.document()
}

// processors is how many goroutines tokenise.
func processors() int { return min(runtime.GOMAXPROCS(0), maxProcessors) }

// memory has the texts of blocks that are done.
type memory chan []byte

func (m memory) get() []byte {
	select {
	case text := <-m:
		return text
	default:
		return make([]byte, 0, 2*pieceBytes)
	}
}

func (m memory) put(text []byte) {
	select {
	case m <- text[:0]:
	default:
	}
}

// job is a block and its result, once it is tokenised.
type job[R any] struct {
	block block
	done  chan result[R] // holds one
}

type result[R any] struct {
	value R
	err   error
}

// file is an open file of a corpus.
type file struct {
	blocks chan block
	err    error // when blocks is closed
}

// scanTexts reads files side by side, cuts them into blocks, and has these worked on by as many
// goroutines as there are processors: each calls a function of its own, which start makes. take is
// called with the results in the order of the text, by one goroutine. Memory is bounded, whatever
// the corpus has. An error is that of the first place in the text that has one.
func scanTexts[R any](
	ctx context.Context, t Tokenizer, read reading, start func() func(block) (R, error),
	take func(R) error,
) error {
	group, ctx := errgroup.WithContext(ctx)
	n := processors()
	work, ordered := make(chan *job[R]), make(chan *job[R], 2*n)
	texts := make(memory, 8*n)
	group.Go(func() error {
		defer close(work)
		defer close(ordered)
		pass := func(j *job[R], to ...chan *job[R]) error {
			for _, to := range to {
				select {
				case to <- j:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		err := readAhead(ctx, group, t, read, texts, func(b block) error {
			return pass(&job[R]{b, make(chan result[R], 1)}, ordered, work)
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		failed := &job[R]{done: make(chan result[R], 1)} // behind the text before it
		failed.done <- result[R]{err: err}
		return pass(failed, ordered)
	})
	for range n {
		do := start()
		group.Go(func() error {
			for j := range work {
				value, err := do(j.block)
				texts.put(j.block.text)
				j.done <- result[R]{value, err}
			}
			return nil
		})
	}
	group.Go(func() error {
		for j := range ordered {
			select {
			case r := <-j.done:
				if r.err != nil {
					return r.err
				}
				if err := take(r.value); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return group.Wait()
}

// readAhead opens as many files at a time as there are processors, and passes on their blocks in
// the order of the files.
func readAhead(
	ctx context.Context, group *errgroup.Group, t Tokenizer, read reading, texts memory,
	pass func(block) error,
) error {
	open := make([]*file, 0, len(read))
	for i := range read {
		for next := len(open); next < min(len(read), i+processors()); next++ {
			f := &file{blocks: make(chan block, aheadBlocks)}
			open = append(open, f)
			group.Go(func() error {
				f.read(ctx, t, read[next], texts)
				return nil
			})
		}
		for b := range open[i].blocks {
			if err := pass(b); err != nil {
				return err
			}
		}
		if open[i].err != nil {
			return open[i].err
		}
		open[i] = nil
	}
	return nil
}

// read reads a file until it ends or ctx does, and closes its blocks.
func (f *file) read(
	ctx context.Context, t Tokenizer, read func(func(io.Reader) error) error, texts memory,
) {
	defer close(f.blocks)
	c := newCutter(t.Unit, texts.get, func(b block) error {
		select {
		case f.blocks <- b:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	f.err = read(func(text io.Reader) error { return t.cutDocument(ctx, text, c) })
	if f.err == nil {
		f.err = c.flush()
	}
}
