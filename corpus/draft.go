package corpus

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// lexiconBytes bounds the words that have a number.
const lexiconBytes = 128 << 20

// A draft is a corpus whose words are numbers instead of ids, which depend on how often each word
// occurs in the whole text. It needs one pass over the text. To write the token file, ids take the
// place of the numbers. Memory is bounded: long words, and new ones once the lexicon is full, have
// the number 0, and the draft has their bytes.
type draft struct {
	lexicon lexicon
	counts  []int64     // of the lexicon's words
	others  *keyCounter // of words with the number 0
	file    *os.File    // of each block a draftHead, the numbers, 4 bytes each, and the other words
	count   int64       // of all words
	ends    documentEnds
}

// A draftHead precedes a block. All integers in a draft are little-endian.
type draftHead struct {
	Numbers uint32
	Others  uint32 // bytes of the words with the number 0: of each its length, as uvarint, and it
}

const draftHeadBytes = 8

// newDraft makes an empty draft, with files in dir.
func newDraft(dir string, limit int) (*draft, error) {
	file, err := scratchFile(dir)
	if err != nil {
		return nil, err
	}
	d := &draft{others: newKeyCounter(dir, counterBytes), file: file}
	d.lexicon.limit = limit
	table := newKeyTable()
	d.lexicon.table.Store(&table)
	return d, nil
}

// close removes the files.
func (d *draft) close() {
	d.others.close()
	d.file.Close()
}

// read adds texts to the draft.
func (d *draft) read(ctx context.Context, t Tokenizer, read reading) error {
	packed := make(memory, 4*processors())
	start := func() func(block) (encoded, error) {
		w := &draftWriter{lexicon: &d.lexicon, batch: make([]shortKey, keyBatch)}
		return func(b block) (e encoded, err error) {
			w.others = w.others[:0]
			if w.numbers, e.ends, err = b.encode(w.numbers[:0], w.encode); err != nil {
				return e, err
			}
			head := draftHead{uint32(len(w.numbers)), uint32(len(w.others))}
			e.ids, _ = binary.Append(packed.get(), binary.LittleEndian, head)
			e.ids = append(pack(e.ids, 4, w.numbers), w.others...)
			return e, nil
		}
	}
	to := bufio.NewWriterSize(d.file, blockBytes)
	err := scanTexts(ctx, t, read, start, func(e encoded) error {
		defer packed.put(e.ids)
		if _, err := to.Write(e.ids); err != nil {
			return err
		}
		return d.add(e)
	})
	return cmp.Or(err, to.Flush())
}

// add counts the words of a block.
func (d *draft) add(e encoded) error {
	numbers := e.ids[draftHeadBytes:][:4*binary.LittleEndian.Uint32(e.ids)]
	d.counts = append(d.counts, make([]int64, max(0, d.lexicon.len()+1-len(d.counts)))...)
	counts := d.counts
	for some := range slices.Chunk(numbers, 4*keyBatch) {
		prefetch(unsafe.Pointer(&counts[0]), 3, (*int32)(unsafe.Pointer(&some[0])), len(some)/4)
		for ; len(some) > 0; some = some[4:] {
			counts[binary.LittleEndian.Uint32(some)]++
		}
	}
	d.ends.add(d.count, e.ends)
	d.count += int64(len(numbers) / 4)
	for words := e.ids[draftHeadBytes+len(numbers):]; len(words) > 0; {
		var word []byte
		word, words = cutEntry(words)
		if err := d.others.add(word, 1); err != nil {
			return err
		}
	}
	return nil
}

// cutEntry cuts a word with its length off.
func cutEntry(words []byte) (word, rest []byte) {
	size, n := binary.Uvarint(words)
	return words[n:][:size], words[n+int(size):]
}

// vocabulary makes the vocabulary of the words.
func (d *draft) vocabulary(minFrequency int64, reserved []string) (*Vocabulary, error) {
	return vocabularyOf(func(yield func([]byte, int64) error) error {
		var memory [16]byte
		for number, count := range d.counts[min(1, len(d.counts)):] {
			key := d.lexicon.table.Load().keys[number+1]
			if err := yield(key.word(&memory), count); err != nil {
				return err
			}
		}
		return d.others.each(yield)
	}, minFrequency, reserved)
}

// forget frees the counts, which only the vocabulary needs.
func (d *draft) forget() {
	d.others.close()
	d.counts, d.others.table = nil, newTally()
}

// write writes the token file.
func (d *draft) write(ctx context.Context, w *TokenWriter) error {
	known := &w.vocabulary.ids
	ids, table := []int32{0}, d.lexicon.table.Load()
	for keys := range slices.Chunk(table.keys[1:][:table.count], keyBatch) {
		ids, _ = known.numbers(ids, keys)
	}
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w.ends = d.ends
	in := bufio.NewReaderSize(d.file, blockBytes)
	var block, packed []byte
	for ctx.Err() == nil {
		var head draftHead
		if err := binary.Read(in, binary.LittleEndian, &head); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the draft: %w", err)
		}
		size := int(4*head.Numbers + head.Others)
		block = slices.Grow(block[:0], size)[:size]
		if _, err := io.ReadFull(in, block); err != nil {
			return fmt.Errorf("read the draft: %w", err)
		}
		others := block[4*head.Numbers:]
		packed = packed[:0]
		for at := 0; at < int(4*head.Numbers); at += 4 {
			number := binary.LittleEndian.Uint32(block[at:])
			id := ids[number]
			if number == 0 {
				var word []byte
				word, others = cutEntry(others)
				id = known.find(word)
			}
			packed = appendID(packed, w.width, id)
		}
		if err := w.putPacked(packed); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// draftWriter encodes blocks for one goroutine.
type draftWriter struct {
	lexicon *lexicon
	batch   []shortKey
	numbers []int32
	others  []byte
}

// encode appends the numbers of a piece's words, and of the EndOfText behind it.
func (w *draftWriter) encode(numbers []int32, text []byte, p piece) ([]int32, error) {
	short := func(keys []shortKey) error {
		from := len(numbers)
		numbers = w.lexicon.numbers(numbers, keys)
		for i, number := range numbers[from:] {
			if number == 0 {
				w.other(keys[i].word(new([16]byte)))
			}
		}
		return nil
	}
	err := eachKey(text, w.batch, short, func(word []byte) error {
		numbers = append(numbers, 0)
		w.other(word)
		return nil
	})
	if p.mark {
		err = cmp.Or(err, short([]shortKey{shortKeyOf([]byte(EndOfText))}))
	}
	return numbers, err
}

// other adds a word whose number is 0.
func (w *draftWriter) other(word []byte) {
	w.others = append(binary.AppendUvarint(w.others, uint64(len(word))), word...)
}

// lexicon numbers short words in the order in which it first sees them. Its methods may be called
// concurrently.
type lexicon struct {
	limit  int // bytes
	adding sync.Mutex
	table  atomic.Pointer[keyTable] // replaced when it grows
	closed atomic.Bool              // it has as many words as the limit allows
}

// len returns how many words there are.
func (l *lexicon) len() int {
	l.adding.Lock()
	defer l.adding.Unlock()
	return l.table.Load().count
}

// numbers appends the numbers of at most keyBatch words. It adds those that are missing. If there
// is no room for a word, its number is 0, now and later.
func (l *lexicon) numbers(numbers []int32, keys []shortKey) []int32 {
	from, closed := len(numbers), l.closed.Load()
	numbers, all := l.table.Load().numbers(numbers, keys)
	if all || closed {
		return numbers
	}
	l.adding.Lock()
	defer l.adding.Unlock()
	for i, key := range keys {
		if numbers[from+i] == 0 {
			numbers[from+i] = l.add(key)
		}
	}
	return numbers
}

// add returns the number of a word, which it adds if there is room. The caller holds the lock.
func (l *lexicon) add(key shortKey) int32 {
	table := l.table.Load()
	if table.full() && 2*table.size() <= l.limit {
		table = table.grown()
		l.table.Store(table)
	}
	if table.full() {
		l.closed.Store(true)
		_, number := table.slot(key)
		return number
	}
	return table.put(key)
}
