package corpus

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"unsafe"
)

const (
	shortBytes = 15 // of a key that has a shortKey
	leastSlots = 8
)

// keyTable numbers keys from 1 on, in the order in which they are put. So the keys that occur often
// in a text lie close together. The hash is drawn for each table, so that no text can be made whose
// keys collide. Short keys may be looked up while one goroutine puts some.
type keyTable struct {
	slots     []int32    // numbers of short keys; 0: empty; a power of two
	keys      []shortKey // by number, half as many as slots; zero: a long key, or the number 0
	count     int        // of keys
	seeds     shortKey   // of the hash
	long      map[string]int32
	longKeys  []string // in the order of their numbers
	longBytes int
}

const (
	longKeyOverhead = 96 // approximate bytes of a long key beside the key itself
	slotBytes       = 4 + (16+8)/2
)

func newKeyTable() keyTable {
	return keyTable{slots: make([]int32, leastSlots), keys: make([]shortKey, leastSlots/2),
		seeds: shortKey{rand.Uint64(), rand.Uint64()}, long: map[string]int32{}}
}

// size is the memory in bytes of the table, and of a count for each key.
func (t *keyTable) size() int { return len(t.slots)*slotBytes + t.longBytes }

// full says whether the table must grow before the next key.
func (t *keyTable) full() bool { return t.count+1 == len(t.keys) }

// grown returns a table of twice the size with the same keys.
func (t *keyTable) grown() *keyTable {
	more := *t
	more.slots, more.keys = make([]int32, 2*len(t.slots)), make([]shortKey, 2*len(t.keys))
	copy(more.keys, t.keys)
	for number, key := range t.keys {
		if key != (shortKey{}) {
			slot, _ := more.slot(key)
			*slot = int32(number)
		}
	}
	return &more
}

// home is the slot where a key belongs. Its hash folds the product of the two words (wyhash).
func (t *keyTable) home(key shortKey) uint64 {
	high, low := bits.Mul64(key.low^t.seeds.low, key.high^t.seeds.high)
	return (high ^ low) & uint64(len(t.slots)-1)
}

// slot returns the slot of a key, at its home or after it, and the number there. If this is 0, the
// key is missing, and another one may be put there.
func (t *keyTable) slot(key shortKey) (slot *int32, number int32) {
	for i := t.home(key); ; i++ {
		slot = &t.slots[i&uint64(len(t.slots)-1)]
		if number = atomic.LoadInt32(slot); number == 0 || t.keys[number] == key {
			return slot, number
		}
	}
}

// putAny returns the number of a key, which it adds if it is missing. The caller may reuse key.
func (t *keyTable) putAny(key []byte) int32 {
	if t.full() {
		*t = *t.grown()
	}
	if short := shortKeyOf(key); short != (shortKey{}) {
		return t.put(short)
	}
	number, ok := t.long[string(key)]
	if !ok {
		t.count++
		own := string(key)
		number, t.longKeys = int32(t.count), append(t.longKeys, own)
		t.long[own] = number
		t.longBytes += len(key) + longKeyOverhead
	}
	return number
}

// put is putAny of a short key. The table must not be full.
func (t *keyTable) put(key shortKey) int32 {
	slot, number := t.slot(key)
	if number == 0 {
		t.count++
		number = int32(t.count)
		t.keys[number] = key
		atomic.StoreInt32(slot, number) // the key is there before its number
	}
	return number
}

// find returns the number of a key; 0: it is missing.
func (t *keyTable) find(key []byte) int32 {
	if short := shortKeyOf(key); short != (shortKey{}) {
		_, number := t.slot(short)
		return number
	}
	return t.long[string(key)]
}

// numbers appends the numbers of at most keyBatch short keys; 0: one is missing.
func (t *keyTable) numbers(to []int32, keys []shortKey) (_ []int32, all bool) {
	if len(keys) == 0 {
		return to, true
	}
	var homes [keyBatch]int32
	for i, key := range keys {
		homes[i] = int32(t.home(key))
	}
	prefetch(unsafe.Pointer(&t.slots[0]), 2, &homes[0], len(keys))
	from := len(to)
	for _, home := range homes[:len(keys)] {
		to = append(to, atomic.LoadInt32(&t.slots[home]))
	}
	numbers := to[from:]
	prefetch(unsafe.Pointer(&t.keys[0]), 4, &numbers[0], len(keys))
	all = true
	for i, key := range keys {
		if t.keys[numbers[i]] != key {
			_, numbers[i] = t.slot(key)
			all = all && numbers[i] > 0
		}
	}
	return to, all
}

// tally counts keys.
type tally struct {
	keyTable
	counts []int64 // by the keys' numbers
}

func newTally() tally { return tally{newKeyTable(), make([]int64, 1)} }

// add counts n occurrences of a key. The caller may reuse key.
func (t *tally) add(key []byte, n int64) {
	number := t.putAny(key)
	if int(number) == len(t.counts) {
		t.counts = append(t.counts, 0)
	}
	t.counts[number] += n
}

// clear removes all keys, and keeps the slots.
func (t *tally) clear() {
	clear(t.slots)
	clear(t.long)
	clear(t.keys)
	t.count, t.counts, t.longKeys, t.longBytes = 0, t.counts[:1], t.longKeys[:0], 0
}

// sorted yields the keys and their counts, in the order of the keys' bytes. A key is valid until
// yield returns.
func (t *tally) sorted(yield func(key []byte, n int64) error) error {
	type counted struct {
		key   shortKey
		count int64
	}
	short := make([]counted, 0, t.count)
	for number, key := range t.keys {
		if key != (shortKey{}) {
			short = append(short, counted{key, t.counts[number]})
		}
	}
	slices.SortFunc(short, func(a, b counted) int { return a.key.compare(b.key) })
	long := slices.Sorted(slices.Values(t.longKeys))
	var memory [16]byte
	for len(short) > 0 || len(long) > 0 {
		var key []byte
		if len(short) > 0 {
			key = short[0].key.word(&memory)
		}
		if len(short) == 0 || len(long) > 0 && bytes.Compare(key, []byte(long[0])) > 0 {
			if err := yield([]byte(long[0]), t.counts[t.long[long[0]]]); err != nil {
				return err
			}
			long = long[1:]
			continue
		}
		if err := yield(key, short[0].count); err != nil {
			return err
		}
		short = short[1:]
	}
	return nil
}

// shortKey is the bytes of a short key, with its length at the end. It is zero for an empty or a
// longer key.
type shortKey struct{ low, high uint64 }

func shortKeyOf(key []byte) (short shortKey) {
	n := len(key)
	if n == 0 || n > shortBytes {
		return short
	}
	if cap(key) < 16 {
		var whole [16]byte
		copy(whole[:], key)
		key = whole[:n]
	}
	// What follows the key in memory is cut off.
	short.low = binary.LittleEndian.Uint64(key[:8])
	if n < 8 {
		short.low &= 1<<(8*n) - 1
	} else {
		short.high = binary.LittleEndian.Uint64(key[8:16]) & (1<<(8*(n-8)) - 1)
	}
	short.high |= uint64(n) << 56
	return short
}

// compare orders keys by their bytes.
func (k shortKey) compare(other shortKey) int {
	return cmp.Or(cmp.Compare(bits.ReverseBytes64(k.low), bits.ReverseBytes64(other.low)),
		cmp.Compare(bits.ReverseBytes64(k.high), bits.ReverseBytes64(other.high)))
}

// word writes the bytes of a key to to.
func (k shortKey) word(to *[16]byte) []byte {
	binary.LittleEndian.PutUint64(to[:8], k.low)
	binary.LittleEndian.PutUint64(to[8:], k.high)
	return to[:k.high>>56]
}
