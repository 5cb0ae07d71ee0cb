package corpus

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"unsafe"
)

const (
	shortBytes = 15 // of a key that has a shortKey
	leastSlots = 4
)

// keyTable has a number for each key. Short keys lie in the table itself, so that a look-up touches
// one or two lines of memory. The hash is drawn for each table, so that no text can be made whose
// keys collide.
type keyTable[N int32 | int64] struct {
	slots       []slot[N] // a power of two; a key is at its home or after it
	multipliers [2]uint64 // of the hash; odd
	short       int       // keys in slots, at most three quarters of them
	long        map[string]int
	longNumbers []N
	longBytes   int
}

type slot[N int32 | int64] struct {
	key    shortKey // zero: empty
	number N
}

const longKeyOverhead = 64 // approximate bytes of a long key beside the key itself

// size is the table's memory in bytes.
func (t *keyTable[N]) size() int {
	return len(t.slots)*int(unsafe.Sizeof(slot[N]{})) + t.longBytes
}

// len is the number of keys.
func (t *keyTable[N]) len() int { return t.short + len(t.longNumbers) }

// room is the number of short keys that fit before the table must grow.
func (t *keyTable[N]) room() int { return len(t.slots)/4*3 - t.short }

// grown is the size after growing.
func (t *keyTable[N]) grown() int {
	return max(2*len(t.slots), leastSlots)*int(unsafe.Sizeof(slot[N]{})) + t.longBytes
}

// grow doubles the slots.
func (t *keyTable[N]) grow() {
	if t.multipliers == [2]uint64{} {
		t.multipliers = [2]uint64{rand.Uint64() | 1, rand.Uint64() | 1}
	}
	old := t.slots
	t.slots = make([]slot[N], max(2*len(old), leastSlots))
	for _, s := range old {
		if s.key != (shortKey{}) {
			*t.slot(s.key) = s
		}
	}
}

// home is where a key belongs: multiply-shift hashing of two words (Dietzfelbinger et al. 1997).
func (t *keyTable[N]) home(key shortKey) uint64 {
	hash := key[0]*t.multipliers[0] + key[1]*t.multipliers[1]
	return hash >> bits.LeadingZeros64(uint64(len(t.slots)-1))
}

// slot returns the slot of a key, which is empty if the key is missing.
func (t *keyTable[N]) slot(key shortKey) *slot[N] {
	last := uint64(len(t.slots) - 1)
	for i := t.home(key); ; i++ {
		if s := &t.slots[i&last]; s.key == key || s.key == (shortKey{}) {
			return s
		}
	}
}

// add adds n to the number of each key. There must be room for all of them.
func (t *keyTable[N]) add(keys []shortKey, n N) {
	for _, key := range keys {
		s := t.slot(key)
		if s.key != key {
			s.key = key
			t.short++
		}
		s.number += n
	}
}

// addLong adds n to the number of a long key. The caller may reuse key.
func (t *keyTable[N]) addLong(key []byte, n N) {
	if i, ok := t.long[string(key)]; ok {
		t.longNumbers[i] += n
		return
	}
	if t.long == nil {
		t.long = map[string]int{}
	}
	t.long[string(key)] = len(t.longNumbers)
	t.longNumbers = append(t.longNumbers, n)
	t.longBytes += len(key) + longKeyOverhead
}

// put sets the number of a key that is missing.
func (t *keyTable[N]) put(key []byte, n N) {
	short := shortKeyOf(key)
	if short == (shortKey{}) {
		t.addLong(key, n)
		return
	}
	if t.room() == 0 {
		t.grow()
	}
	t.add([]shortKey{short}, n)
}

// find returns the number of a key; 0, false: it is missing.
func (t *keyTable[N]) find(key []byte) (n N, ok bool) {
	short := shortKeyOf(key)
	if short == (shortKey{}) {
		i, ok := t.long[string(key)]
		if !ok {
			return 0, false
		}
		return t.longNumbers[i], true
	}
	if len(t.slots) == 0 {
		return 0, false
	}
	s := t.slot(short)
	return s.number, s.key == short
}

// numbers appends the numbers of short keys; 0: the key is missing. The table must have a slot.
func (t *keyTable[N]) numbers(to []N, keys []shortKey) []N {
	for _, key := range keys {
		to = append(to, t.slot(key).number)
	}
	return to
}

// clear removes all keys, and keeps the slots.
func (t *keyTable[N]) clear() {
	clear(t.slots)
	clear(t.long)
	t.short, t.longNumbers, t.longBytes = 0, t.longNumbers[:0], 0
}

// sorted yields the keys and their numbers, in the order of the keys' bytes. A key is valid until
// yield returns.
func (t *keyTable[N]) sorted(yield func(key []byte, n N) error) error {
	short := make([]slot[N], 0, t.short)
	for _, s := range t.slots {
		if s.key != (shortKey{}) {
			short = append(short, s)
		}
	}
	slices.SortFunc(short, func(a, b slot[N]) int { return a.key.compare(b.key) })
	long := slices.Sorted(maps.Keys(t.long))
	var memory [16]byte
	for len(short) > 0 || len(long) > 0 {
		var key []byte
		if len(short) > 0 {
			key = short[0].key.word(&memory)
		}
		if len(short) == 0 || len(long) > 0 && bytes.Compare(key, []byte(long[0])) > 0 {
			if err := yield([]byte(long[0]), t.longNumbers[t.long[long[0]]]); err != nil {
				return err
			}
			long = long[1:]
			continue
		}
		if err := yield(key, short[0].number); err != nil {
			return err
		}
		short = short[1:]
	}
	return nil
}

// shortKey is the bytes of a short key, with its length at the end. It is zero for an empty or a
// longer key.
type shortKey [2]uint64

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
	short[0] = binary.LittleEndian.Uint64(key[:8])
	if n < 8 {
		short[0] &= 1<<(8*n) - 1
	} else {
		short[1] = binary.LittleEndian.Uint64(key[8:16]) & (1<<(8*(n-8)) - 1)
	}
	short[1] |= uint64(n) << 56
	return short
}

// compare orders keys by their bytes.
func (k shortKey) compare(other shortKey) int {
	return cmp.Or(cmp.Compare(bits.ReverseBytes64(k[0]), bits.ReverseBytes64(other[0])),
		cmp.Compare(bits.ReverseBytes64(k[1]), bits.ReverseBytes64(other[1])))
}

// word writes the bytes of a key to to.
func (k shortKey) word(to *[16]byte) []byte {
	binary.LittleEndian.PutUint64(to[:8], k[0])
	binary.LittleEndian.PutUint64(to[8:], k[1])
	return to[:k[1]>>56]
}
