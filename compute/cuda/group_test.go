//go:build cuda

package cuda

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/cuda/driver"
	"rondo/compute/cuda/emulator"
	"rondo/compute/devicetest"
)

const fourGPUs = "RONDO_EMULATOR_DEVICES=4"

// newPeer opens a GPU of several.
func newPeer(t testing.TB, index int) *Device {
	t.Helper()
	d, err := New(Config{Index: index})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestGroups holds GPUs of one process to the contract; a single one forms a group, too, so that
// NCCL itself is called wherever it is.
func TestGroups(t *testing.T) {
	if emulator.Running() && !child(t) {
		if output, err := inChild(t, fourGPUs); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	all, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	if version, _, err := NCCL(); err != nil {
		t.Skipf("no NCCL: %v", err)
	} else {
		t.Logf("NCCL %s, %d GPUs", version, len(all))
	}
	for world := 1; world <= min(4, len(all)); world++ {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			devicetest.Groups(t, world, func(t testing.TB, rank int) compute.Grouper {
				return newPeer(t, rank)
			})
		})
	}
}

// TestGroupIsRefused has members that do not fit together.
func TestGroupIsRefused(t *testing.T) {
	if !child(t) {
		if !emulator.Running() {
			t.Skip("members that do not fit together may wait for each other")
		}
		if output, err := inChild(t, fourGPUs); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	for _, c := range []struct {
		name                string
		gpus, ranks, worlds [2]int
		length              [2]int
		joins, sums         bool
	}{
		{name: "one GPU", gpus: [2]int{1, 1}, ranks: [2]int{0, 1}, worlds: [2]int{2, 2}},
		{name: "other worlds", gpus: [2]int{0, 1}, ranks: [2]int{0, 1}, worlds: [2]int{2, 3}},
		{name: "other lengths", gpus: [2]int{0, 1}, ranks: [2]int{0, 1}, worlds: [2]int{2, 2},
			length: [2]int{7, 8}, joins: true},
		{name: "alike", gpus: [2]int{0, 1}, ranks: [2]int{1, 0}, worlds: [2]int{2, 2},
			length: [2]int{7, 7}, joins: true, sums: true},
	} {
		devices := []compute.Grouper{newPeer(t, c.gpus[0]), newPeer(t, c.gpus[1])}
		id, err := devices[0].NewGroupID()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		results := make(chan error, len(devices))
		for i, d := range devices {
			go func() {
				g, err := d.Join(ctx, id, c.ranks[i], c.worlds[i])
				if err == nil != c.joins {
					t.Errorf("%s: joining as rank %d: %v", c.name, c.ranks[i], err)
				}
				if err == nil {
					err = g.AllReduce(ctx, d.Alloc(c.length[i]))
				}
				results <- err
			}()
		}
		for range devices {
			var wrong *driver.NCCLError
			if err := <-results; err == nil != c.sums || !c.sums && !errors.As(err, &wrong) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		cancel()
		for _, d := range devices {
			d.Close()
		}
	}
}

// TestGroupOfProcesses sums between two processes, of which one is killed: the other goes on when
// it has heard of that.
func TestGroupOfProcesses(t *testing.T) {
	if id := os.Getenv("RONDO_TEST_GROUP"); id != "" {
		sumAndStay(t, id)
		return
	}
	if emulator.Running() && !child(t) {
		if output, err := inChild(t, fourGPUs); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	if all, err := Devices(); err != nil || len(all) < 2 {
		t.Skipf("%d GPUs, and two are needed: %v", len(all), err)
	}
	d := newPeer(t, 0)
	defer d.Close()
	id, err := d.NewGroupID()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestGroupOfProcesses$")
	other.Env = append(os.Environ(), "RONDO_TEST_GROUP="+hex.EncodeToString(id))
	out, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("it is gone"))
	defer cancel()
	g, err := d.Join(ctx, id, 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	x := d.Alloc(1000)
	d.Upload(x, numbers(len(x), 1))
	if err := g.AllReduce(ctx, x); err != nil {
		t.Fatal(err)
	}
	want := numbers(len(x), 1)
	for i := range want {
		want[i] += 10
	}
	expect(t, "the sum", d, x, want)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil ||
		strings.TrimSpace(line) != "11" {
		t.Errorf("the other process has %q, %v", line, err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := g.AllReduce(short, x); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a sum with a process that is gone: %v", err)
	}
	d.Upload(x, want)
	scale(d, x, 2)
	for i := range want {
		want[i] *= 2
	}
	expect(t, "what is computed afterwards", d, x, want)
	g.Close()
}

// sumAndStay is the other process: it adds ten to each number, prints the first sum, and stays
// until it is killed.
func sumAndStay(t *testing.T, name string) {
	id, err := hex.DecodeString(name)
	if err != nil {
		t.Fatal(err)
	}
	d := newPeer(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := d.Join(ctx, id, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	x, tens := d.Alloc(1000), make([]float32, 1000)
	for i := range tens {
		tens[i] = 10
	}
	d.Upload(x, tens)
	if err := g.AllReduce(ctx, x); err != nil {
		t.Fatal(err)
	}
	d.Download(tens, x)
	fmt.Println(strconv.FormatFloat(float64(tens[0]), 'g', -1, 32))
	<-ctx.Done()
}

// TestGroupHangs has an abort not come to its end: the device has failed, and says so, whether the
// group is given up, closed, or was never whole; it can still be closed.
func TestGroupHangs(t *testing.T) {
	if !child(t) {
		if !emulator.Running() {
			t.Skip("a real abort comes to its end")
		}
		if output, err := inChild(t, fourGPUs, "RONDO_EMULATOR_NCCL_ABORT=hangs"); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		return
	}
	for name, use := range map[string]func(ctx context.Context, d *Device, id []byte) error{
		"closed": func(ctx context.Context, d *Device, id []byte) error {
			g, err := d.Join(ctx, id, 0, 1)
			if err == nil {
				g.Close()
			}
			return err
		},
		"joining given up": func(ctx context.Context, d *Device, id []byte) error {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := d.Join(short, id, 0, 2)
			return err
		},
		"joining refused": func(ctx context.Context, d *Device, id []byte) error {
			if _, err := d.queue.context.Join(d.nccl, id, 0, 2); err != nil {
				return err
			}
			_, err := d.Join(ctx, id, 0, 2) // whose place is taken
			return err
		},
	} {
		d := newPeer(t, 0)
		id, err := d.NewGroupID()
		if err != nil {
			t.Fatal(err)
		}
		d.nccl.AbortPatience = 10 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		x := d.Alloc(10)
		for _, doing := range []func() error{
			func() error { return use(ctx, d, id) },
			func() error { d.Download(make([]float32, len(x)), x); return nil },
		} {
			err := func() (err error) {
				defer compute.Catch(&err)
				return doing()
			}()
			if failed, ok := errors.AsType[*compute.DeviceError](err); !ok || !d.queue.broken ||
				!strings.Contains(failed.Error(), "ncclCommAbort: it has not come to an end in") {
				t.Errorf("%s: %v; broken: %t", name, err, d.queue.broken)
			}
		}
		cancel()
		d.Close()
	}
}

// TestWithoutNCCL has none that will do, and says why.
func TestWithoutNCCL(t *testing.T) {
	if child(t) {
		d := newGPU(t, compute.FP32)
		_, err := d.Peer()
		version, library, unable := NCCL()
		if _, idless := d.NewGroupID(); (err == nil) != (idless == nil) ||
			(err == nil) != (unable == nil) {
			t.Errorf("%v, but %v and %v", err, idless, unable)
		}
		if (err == nil) != strings.HasSuffix(library, "/libnccl.so.2") {
			t.Errorf("%v, but it is opened from %q", err, library)
		}
		t.Logf("NCCL %q: %v", version, err)
		return
	}
	if !emulator.Running() {
		t.Skip("this machine's NCCL is what it is")
	}
	for setting, want := range map[string]string{
		"":      `NCCL "2.23.4": <nil>`,
		"0":     `NCCL "": libnccl.so.2: unhandled system error (NCCL's error 2)`,
		"21901": `NCCL "2.19.1": <nil>`,
		"21805": `NCCL "": libnccl.so.2: it is NCCL 2.18.5, and must be 2.19.1 or newer`,
		"2708":  `NCCL "": libnccl.so.2: it is NCCL 2.7.8, and must be 2.19.1 or newer`,
	} {
		var settings []string
		if setting != "" {
			settings = append(settings, "RONDO_EMULATOR_NCCL="+setting)
		}
		if output, err := inChild(t, settings...); err != nil || !strings.Contains(output, want) {
			t.Errorf("%q: %v, no %q in: %s", setting, err, want, output)
		}
	}
}
