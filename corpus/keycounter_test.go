package corpus

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestKeyCounterIsExactInLittleMemory spills so often that runs are merged more than once, and
// compares the counts with a map's.
func TestKeyCounterIsExactInLittleMemory(t *testing.T) {
	for _, distinct := range []int{1, 3, 50, 1500} {
		dir := t.TempDir()
		random := rand.New(rand.NewPCG(1, uint64(distinct)))
		counts := newKeyCounter(dir, 1000)
		defer counts.close()
		want := map[string]int64{}
		key := make([]byte, 0, 64)
		for range 5000 {
			i := random.IntN(distinct)
			key = fmt.Appendf(key[:0], "%d%s", i, strings.Repeat("x", i%40))
			if err := counts.add(key, 1); err != nil {
				t.Fatal(err)
			}
			want[string(key)]++
			if size := counts.table.size(); size > 1000 {
				t.Fatalf("%d bytes in memory", size)
			}
		}
		if (len(counts.runs) > 0) != (distinct >= 50) || len(counts.runs) > maxCounterRuns {
			t.Errorf("%d distinct keys make %d runs", distinct, len(counts.runs))
		}
		got := map[string]int64{}
		var order []string
		err := counts.each(func(key []byte, count int64) error {
			got[string(key)] += count
			order = append(order, string(key))
			return nil
		})
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%d distinct keys: %d counted, %v", distinct, len(got), err)
		}
		if !slices.IsSorted(order) || len(order) != len(want) {
			t.Errorf("%d distinct keys come %d times, sorted: %v", distinct, len(order),
				slices.IsSorted(order))
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 0 {
			t.Errorf("scratch files are left: %v, %v", left, err)
		}
	}
}

func TestKeyCounterEndsWithTheCallersError(t *testing.T) {
	counts := newKeyCounter(t.TempDir(), 100)
	defer counts.close()
	for i := range 10 {
		if err := counts.add([]byte{byte(i)}, 1); err != nil {
			t.Fatal(err)
		}
	}
	stop := os.ErrDeadlineExceeded
	if err := counts.each(func([]byte, int64) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v; want %v", err, stop)
	}
	nowhere := newKeyCounter("/no/such/folder", 1)
	if err := nowhere.add([]byte("a key of many bytes"), 1); err != nil {
		t.Errorf("one key always fits: %v", err)
	}
	if err := nowhere.add([]byte("another key of many bytes"), 1); err == nil {
		t.Error("a spill to nowhere is no error")
	}
}
