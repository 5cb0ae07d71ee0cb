package devicetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"rondo/compute"
)

// The waits of the tests of groups: for results that come, and for those that must not.
const (
	groupLimit  = time.Minute
	groupAbsent = 300 * time.Millisecond
)

// Groups tests the contract of compute.Group on world devices. open opens one for each rank, all
// different.
func Groups(t *testing.T, world int, open func(t testing.TB, rank int) compute.Grouper) {
	devices := make([]compute.Grouper, world)
	for rank := range devices {
		devices[rank] = open(t, rank)
		defer devices[rank].Close()
	}
	peers := make([]compute.Peer, world)
	for rank, d := range devices {
		var err error
		if peers[rank], err = d.Peer(); err != nil {
			t.Fatal(err)
		}
		for _, other := range peers[:rank] {
			if other.Unit == peers[rank].Unit || other.Host != peers[rank].Host ||
				other.Library != peers[rank].Library {
				t.Errorf("peers on one host: %+v and %+v", other, peers[rank])
			}
		}
	}
	t.Run("sums", func(t *testing.T) { testGroupSums(t, devices) })
	t.Run("absent from a sum", func(t *testing.T) { testGroupAbsent(t, devices) })
	t.Run("absent from joining", func(t *testing.T) { testGroupIncomplete(t, devices) })
	t.Run("sums again", func(t *testing.T) { testGroupSums(t, devices) })
}

// together runs f for each rank at the same time.
func together(devices []compute.Grouper, f func(rank int, d compute.Grouper)) {
	var all sync.WaitGroup
	for rank, d := range devices {
		all.Go(func() { f(rank, d) })
	}
	all.Wait()
}

// group makes a group of the devices.
func group(t *testing.T, devices []compute.Grouper) []compute.Group {
	t.Helper()
	id, err := devices[0].NewGroupID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), groupLimit)
	defer cancel()
	groups, errs := make([]compute.Group, len(devices)), make([]error, len(devices))
	together(devices, func(rank int, d compute.Grouper) {
		groups[rank], errs[rank] = d.Join(ctx, id, rank, len(devices))
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return groups
}

// testGroupSums repeatedly sums values that each device has only just computed.
func testGroupSums(t *testing.T, devices []compute.Grouper) {
	groups := group(t, devices)
	ctx, cancel := context.WithTimeout(t.Context(), groupLimit)
	defer cancel()
	for _, n := range []int{1, 2, 1000, 100_003} {
		got := make([][]float32, len(devices))
		together(devices, func(rank int, d compute.Grouper) {
			defer recovered(t)
			x, host := d.Alloc(n), make([]float32, n)
			defer d.Free(x)
			for i := range host {
				host[i] = float32((i + rank) % 1000)
			}
			d.Upload(x, host)
			d.Scale(x, 1.0/3)
			if err := groups[rank].AllReduce(ctx, x); err != nil {
				t.Error(err)
			}
			d.Scale(x, 3)
			d.Download(host, x)
			got[rank] = host
		})
		for rank := range got {
			SameBits(t, "another rank's sum", got[rank], got[0])
		}
		for i, v := range got[0] {
			want := 0.0
			for rank := range devices {
				want += float64((i + rank) % 1000)
			}
			if diff := float64(v) - want; diff > 1e-3*(1+want) || diff < -1e-3*(1+want) {
				t.Fatalf("element %d of %d is %v, want %v", i, n, v, want)
			}
		}
	}
	for _, g := range groups {
		g.Close()
		g.Close() // as its device's Close does
	}
}

// testGroupAbsent has the last device take no part: the others give up when their context ends, and
// compute on. A group that was given up sums nothing any more.
func testGroupAbsent(t *testing.T, devices []compute.Grouper) {
	groups := group(t, devices)
	defer groups[len(groups)-1].Close()
	missed := errors.New("a neighbour is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	timer := time.AfterFunc(groupAbsent, func() { cancel(missed) })
	defer timer.Stop()
	together(devices[:len(devices)-1], func(rank int, d compute.Grouper) {
		defer recovered(t)
		x := d.Alloc(1000)
		defer d.Free(x)
		if err := groups[rank].AllReduce(ctx, x); !errors.Is(err, missed) {
			t.Errorf("rank %d: %v, want %v", rank, err, missed)
		}
		if err := groups[rank].AllReduce(t.Context(), x); err == nil {
			t.Errorf("rank %d: a group that was given up sums", rank)
		}
		host := slices.Repeat([]float32{2}, len(x))
		d.Upload(x, host)
		d.Scale(x, 3)
		d.Download(host, x)
		SameBits(t, "what is computed afterwards", host, slices.Repeat([]float32{6}, len(x)))
		groups[rank].Close()
	})
}

// testGroupIncomplete has the last device not join.
func testGroupIncomplete(t *testing.T, devices []compute.Grouper) {
	id, err := devices[0].NewGroupID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), groupAbsent)
	defer cancel()
	together(devices[:len(devices)-1], func(rank int, d compute.Grouper) {
		defer recovered(t)
		g, err := d.Join(ctx, id, rank, len(devices))
		if g != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("rank %d: %v, %v", rank, g, err)
		}
	})
}

// recovered makes a device's failure one of the test.
func recovered(t *testing.T) {
	if p := recover(); p != nil {
		t.Errorf("%v", p)
	}
}
