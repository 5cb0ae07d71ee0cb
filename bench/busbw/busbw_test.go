package busbw

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rondo/allreduce"
)

// TestMain is also the program of a rank, and of one that dies.
func TestMain(m *testing.M) {
	if len(os.Args) != 2 || !strings.HasPrefix(os.Args[1], "rank") {
		os.Exit(m.Run())
	}
	var orders io.Reader = os.Stdin
	if os.Args[1] == "rank-that-dies" {
		orders = &dying{Reader: os.Stdin}
	}
	if err := Serve(context.Background(), orders, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dying ends the process of rank 1 when it is told to time something.
type dying struct {
	io.Reader
	seen []byte
}

func (d *dying) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	d.seen = append(d.seen, p[:n]...)
	if bytes.Contains(d.seen, []byte(`"Rank":1`)) && bytes.Contains(d.seen, []byte(doTime)) {
		os.Exit(7)
	}
	return n, err
}

func testConfig(link string, world int) Config {
	return Config{World: world, Sizes: []int{4, 4096}, Link: link, Wire: "fp32",
		Window: time.Millisecond, Rank: program(os.Args[0], "rank"), Log: os.Stderr}
}

// program has the same command line for all ranks.
func program(argv ...string) func(int) []string { return func(int) []string { return argv } }

func TestMeasure(t *testing.T) {
	for _, link := range Links() {
		for _, world := range []int{2, 3} {
			c := testConfig(link, world)
			var log bytes.Buffer // which is written by one at a time
			c.Log = &log
			var rows []Row
			err := Measure(t.Context(), c, func(r Row) error {
				rows = append(rows, r)
				return nil
			})
			if err != nil || len(rows) != len(c.Sizes) || log.Len() > 0 {
				t.Fatalf("%s, %d ranks: %d rows, %v\n%s", link, world, len(rows), err, &log)
			}
			for i, r := range rows {
				share := 2 * float64(world-1) / float64(world)
				busbw := share * float64(c.Sizes[i]) / (r.MS / 1e3) / 1e9
				if r.Link != link || r.World != world || r.Bytes != c.Sizes[i] ||
					r.Repetitions < Turns*leastRepetitions || r.P99MS < r.MS ||
					(r.CipherBusBW > 0) != (link == tlsLink) ||
					r.RawP99MS < r.RawMS || !(r.RawMS > 0) || !(r.Loopback > 0) ||
					!(r.BusBW > 0.999*busbw && r.BusBW < 1.001*busbw) {
					t.Errorf("%+v", r)
				}
			}
		}
	}
}

// A ring alone has a row without what it would be beside. Its ranks listen where they are told to.
func TestAlone(t *testing.T) {
	c := testConfig("tcp", 3)
	c.Alone, c.Addresses = true, []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	rows := 0
	err := Measure(t.Context(), c, func(r Row) error {
		rows++
		if r.Repetitions < Turns*leastRepetitions || !(r.MS > 0) || !(r.BusBW > 0) ||
			r.RawMS != 0 || r.Loopback != 0 || r.OfRaw != 0 || r.OfLoopback != 0 {
			t.Errorf("%+v", r)
		}
		return nil
	})
	if err != nil || rows != len(c.Sizes) {
		t.Errorf("%d rows, %v", rows, err)
	}
	c.Addresses[1] = "192.0.2.1" // reserved for documentation: not ours
	err = Measure(t.Context(), c, func(Row) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("%v", err)
	}
}

// The canonical sum is measured by turns with the ring's, and what is to be measured in the same
// minutes is also called for a ring alone.
func TestCanonicalAlone(t *testing.T) {
	for world := 2; world <= Groups; world += 3 {
		c := testConfig(MemoryLink, world)
		c.Alone, c.Reduce = true, ReduceCanonical
		between := 0
		c.Between = func(context.Context, int) error {
			between++
			return nil
		}
		rows := 0
		err := Measure(t.Context(), c, func(r Row) error {
			rows++
			if !(r.MS > 0) || !(r.TreeMS > 0) || r.TreeP99MS < r.TreeMS || r.RawMS != 0 {
				t.Errorf("%+v", r)
			}
			return nil
		})
		if err != nil || rows != len(c.Sizes) || between != Turns*rows {
			t.Errorf("%d ranks: %d rows, %d times between, %v", world, rows, between, err)
		}
	}
}

// A rank that dies ends the measurement with one line that names it, whatever the others say.
func TestRankThatDies(t *testing.T) {
	c := testConfig("tcp", 3)
	c.Rank = program(os.Args[0], "rank-that-dies")
	err := Measure(t.Context(), c, func(Row) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "link tcp: rank 1 (process ") ||
		!strings.HasSuffix(err.Error(), " has ended: exit status 7") {
		t.Errorf("%v", err)
	}
	c.Rank = program("no-such-program")
	err = Measure(t.Context(), c, func(Row) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "rank 0: exec: ") {
		t.Errorf("%v", err)
	}
}

func TestInterrupted(t *testing.T) {
	for _, link := range Links() {
		ctx, stop := context.WithCancelCause(t.Context())
		reason := fmt.Errorf("interrupted")
		err := Measure(ctx, testConfig(link, 2), func(Row) error {
			stop(reason)
			return nil
		})
		if err == nil || !strings.HasSuffix(err.Error(), "link "+link+": interrupted") {
			t.Errorf("%v", err)
		}
	}
}

// Link shm carries chunks through shared memory or not at all, and speaks of this command's flags.
func TestSharedMemoryOrNothing(t *testing.T) {
	var ends [2]*grpcEnds
	var addresses []string
	for rank, name := range []string{"shm", "tcp"} { // the rank of tcp takes no memory
		l, _ := linkOf(name)
		var err error
		if ends[rank], err = newGRPCEnds(l, loopback); err != nil {
			t.Fatal(err)
		}
		defer ends[rank].close()
		addresses = append(addresses, ends[rank].address())
	}
	other := make(chan allreduce.Links, 1)
	go func() {
		links, _ := ends[1].connect(t.Context(), seat{Rank: 1, World: 2}, addresses)
		other <- links
	}()
	_, err := ends[0].connect(t.Context(), seat{Rank: 0, World: 2}, addresses)
	if err == nil || !strings.HasPrefix(err.Error(), "no link shm to rank 1") ||
		!strings.HasSuffix(err.Error(), "; --link tcp needs no more than an address") {
		t.Errorf("%v", err)
	}
	if links := <-other; links.Successor != nil {
		links.Predecessor.Close()
		links.Successor.Close()
	}
}

func TestValidate(t *testing.T) {
	fewAddresses := func(c *Config) { c.Addresses = []string{"127.0.0.1"} }
	for want, wrong := range map[string]func(*Config){
		"1 addresses for 2 ranks":                            fewAddresses,
		"--world 1: must be 2 to 64":                         func(c *Config) { c.World = 1 },
		`--link "ipx": must be tcp or unix or shm or tls or`: func(c *Config) { c.Link = "ipx" },
		"--sizes is empty: give numbers of bytes":            func(c *Config) { c.Sizes = nil },
		"--sizes 6: must be a multiple of 4":                 func(c *Config) { c.Sizes[1] = 6 },
		"--seconds 0: must be more than 0, and no more":      func(c *Config) { c.Window = 0 },
		"--sizes 2147483648: must be":                        func(c *Config) { c.Sizes[0] <<= 29 },
	} {
		c := testConfig("tcp", 2)
		wrong(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// said are ranks that have already answered.
func said(answers ...answer) *group {
	g := &group{kill: func() {}}
	for _, a := range answers {
		text, _ := json.Marshal(a)
		g.members = append(g.members, member{out: json.NewEncoder(io.Discard),
			in: json.NewDecoder(bytes.NewReader(text))})
	}
	return g
}

func TestSlowestRankCounts(t *testing.T) {
	g := said(answer{Seconds: []float64{1, 5}}, answer{Seconds: []float64{3, 2}})
	took, err := g.time(t.Context(), onLink, 64, 2)
	if err != nil || !slices.Equal(took, []float64{3, 5}) {
		t.Errorf("%v, %v", took, err)
	}
}

// Orders and answers of any length arrive at ranks that are goroutines.
func TestMessagesOfAnyLength(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := form(ctx, Config{World: 2, Link: "memory", Wire: "fp32"})
	if err != nil {
		t.Fatal(err)
	}
	defer g.end()
	for n := range 3000 {
		_, err := g.exchange(ctx, order{Do: task(strings.Repeat("x", n))}, 10*time.Second)
		if err == nil || !strings.Contains(err.Error(), "no such order") {
			t.Fatalf("an order of %d bytes: %v", n, err)
		}
	}
}

// A rank that hangs ends the measurement within seconds of what its order should take.
func TestRankThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, held := io.Pipe()
		killed := false
		g := &group{kill: func() { killed = true; held.Close() }, members: []member{{name: "rank 0",
			out: json.NewEncoder(io.Discard), in: json.NewDecoder(from),
			ended: func() error { return nil }}}}
		began := time.Now()
		err := g.check(t.Context(), onLink, 64)
		if err == nil || err.Error() != "a rank has not answered for 10s" || !killed {
			t.Errorf("%v, killed: %v", err, killed)
		}
		if waited := time.Since(began); waited > leastPatience+time.Second {
			t.Errorf("it waited for %v", waited)
		}
	})
}

// constant leaves each number what the function makes of it.
type constant func(float32) float32

func (f constant) AllReduce(_ context.Context, buf []float32) error {
	for i, x := range buf {
		buf[i] = f(x)
	}
	return nil
}

// Sums that are wrong, and ranks that differ, are found.
func TestCheck(t *testing.T) {
	r := &rank{seat: seat{Rank: 0, World: 2}}
	double := constant(func(x float32) float32 { return 2 * x })
	if _, err := r.check(t.Context(), double, 10, 1e-7); err == nil ||
		!strings.HasPrefix(err.Error(), "rank 0: number 0 of 10 sums to ") {
		t.Errorf("%v", err)
	}
	differ := said(answer{Digest: 1}, answer{Digest: 1}, answer{Digest: 2})
	err := differ.check(t.Context(), onTCP, 8)
	if err == nil || err.Error() != "raw ring: the sum's bits on rank 2 differ from rank 0's" {
		t.Errorf("%v", err)
	}
}

func TestQuantile(t *testing.T) {
	values := []float64{4, 1, 3, 2}
	for q, want := range map[float64]float64{0: 1, 0.5: 2, 0.75: 3, 0.99: 4, 1: 4} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
}
