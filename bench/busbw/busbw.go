// Package busbw measures how fast a ring all-reduces on one machine. Beside it, it measures two
// bounds: a ring of the same schedule on bare TCP, and one direction of one TCP connection.
//
// Each rank is a process, which calls [Serve]; the ranks of the link in memory are goroutines.
// [Measure] leads them. It prints nothing and knows no flags. It imports allreduce, its links and
// internal/procgroup.
package busbw

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"rondo/allreduce"
)

// Limits of a measurement.
const (
	MaxWorld = 64
	MaxBytes = 1 << 30
)

// Config says which rings to measure, and how long.
type Config struct {
	World  int   // ranks, 2 to MaxWorld
	Sizes  []int // bytes of the buffer, multiples of 4
	Link   string
	Wire   string        // number format on the wire
	Reduce string        // ReduceCanonical measures the tree's sum too; else there is the ring's
	Window time.Duration // for each ring and size

	// Rank returns the command line of a rank's process, which calls Serve with its standard
	// input and output.
	Rank func(rank int) []string
	Log  io.Writer // standard error of the ranks, one write at a time

	// Addresses are the IP addresses on which the ranks listen; empty: all on loopback.
	Addresses []string
	// Alone leaves out the bare ring and the connection, which take long on a slow network.
	Alone bool
	// Between, if set, is called at the end of each turn, while no ring is active, to measure
	// something else in the same minutes.
	Between func(ctx context.Context, bytes int) error
}

// Validate names the flag of the command that is wrong.
func (c Config) Validate() error {
	if c.World < 2 || c.World > MaxWorld {
		return fmt.Errorf("--world %d: must be 2 to %d", c.World, MaxWorld)
	}
	if _, known := linkOf(c.Link); !known {
		return fmt.Errorf("--link %q: must be %s", c.Link, strings.Join(Links(), " or "))
	}
	if _, known := elementOf(c.Wire); !known {
		return fmt.Errorf("--wire %q: must be %s", c.Wire, strings.Join(Wires(), " or "))
	}
	switch {
	case c.Reduce == "" || c.Reduce == ReduceRing:
	case c.Reduce != ReduceCanonical:
		return fmt.Errorf("--reduce %q: must be %s", c.Reduce, strings.Join(Reduces(), " or "))
	case c.World > Groups:
		return fmt.Errorf("--world %d: must be 2 to %d with --reduce %s, which sums so many lane "+
			"groups", c.World, Groups, c.Reduce)
	case c.Wire != allreduce.Float32.String():
		return fmt.Errorf("--wire %s: must be %v with --reduce %s, whose sums travel as that",
			c.Wire, allreduce.Float32, c.Reduce)
	}
	if len(c.Sizes) == 0 {
		return fmt.Errorf("--sizes is empty: give numbers of bytes, by commas")
	}
	for _, bytes := range c.Sizes {
		if bytes < 4 || bytes > MaxBytes || bytes%4 != 0 {
			return fmt.Errorf("--sizes %d: must be a multiple of 4, 4 to %d", bytes, MaxBytes)
		}
	}
	if len(c.Addresses) > 0 && len(c.Addresses) != c.World {
		return fmt.Errorf("%d addresses for %d ranks", len(c.Addresses), c.World)
	}
	if c.Window <= 0 || c.Window > time.Hour {
		return fmt.Errorf("--seconds %v: must be more than 0, and no more than an hour",
			c.Window.Seconds())
	}
	return nil
}

// Row is the result for one size. With Alone the fields behind BusBW are zero. Rates are in GB/s,
// 10^9 bytes.
type Row struct {
	Link        string  `json:"link"`
	Wire        string  `json:"wire"`
	World       int     `json:"world"`
	Bytes       int     `json:"bytes"`
	Repetitions int     `json:"repetitions"` // that were timed
	Summed      int     `json:"-"`           // how often in all, checks and warming up included
	MS          float64 `json:"ms"`          // median
	P99MS       float64 `json:"p99_ms"`
	BusBW       float64 `json:"busbw"` // of the median; counts float32 bytes with every wire format

	RawMS    float64 `json:"raw_ms"` // the same of the ring on bare TCP
	RawP99MS float64 `json:"raw_p99_ms"`
	RawBusBW float64 `json:"raw_busbw"`
	OfRaw    float64 `json:"of_raw"` // BusBW / RawBusBW

	Loopback   float64 `json:"loopback"`    // one direction of a TCP connection
	OfLoopback float64 `json:"of_loopback"` // BusBW / Loopback

	Cipher      float64 `json:"cipher,omitempty"`       // TLS's, of one core, in GB/s
	CipherBusBW float64 `json:"cipher_busbw,omitempty"` // if all cores did nothing else

	TreeMS    float64 `json:"tree_ms,omitempty"` // of the canonical sum, if it was measured
	TreeP99MS float64 `json:"tree_p99_ms,omitempty"`
	OfRing    float64 `json:"of_ring,omitempty"` // TreeMS / MS
}

// rings are those that are measured by turns.
func (c Config) rings() []ring {
	all := []ring{onLink}
	if !c.Alone {
		all = append(all, onTCP)
	}
	if c.Reduce == ReduceCanonical {
		all = append(all, onTree)
	}
	return all
}

// Turns is the number of turns that each ring has at a size. A machine that is slower for a while
// then slows all of them.
const Turns = 4

// Bounds of the repetitions in a turn, and how many warm a ring up before the first.
const (
	leastRepetitions = 3
	mostRepetitions  = 2000
	warmRepetitions  = 3
)

// Measure measures the sizes in turn and hands over their rows as they come. Before a size is
// timed, both rings' sums are checked on all ranks.
func Measure(ctx context.Context, c Config, each func(Row) error) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	g, err := form(ctx, c)
	if err != nil {
		return err
	}
	defer g.end()
	for _, bytes := range c.Sizes {
		row, err := g.row(ctx, c, bytes)
		if err != nil {
			return fmt.Errorf("all-reduce of %d bytes, %d ranks, link %s: %w", bytes, c.World,
				c.Link, err)
		}
		if err := each(row); err != nil {
			return err
		}
	}
	return nil
}

// warm checks the sums around each ring, and returns how many of them fill a turn.
func (g *group) warm(ctx context.Context, c Config, bytes int) (map[ring]int, error) {
	repetitions := map[ring]int{}
	for _, r := range c.rings() {
		if err := g.check(ctx, r, bytes); err != nil {
			return nil, err
		}
		took, err := g.time(ctx, r, bytes, warmRepetitions)
		if err != nil {
			return nil, err
		}
		fit := c.Window.Seconds() / Turns / quantile(took, 0.5)
		repetitions[r] = int(min(max(fit, leastRepetitions), mostRepetitions))
	}
	return repetitions, nil
}

// row measures one size.
func (g *group) row(ctx context.Context, c Config, bytes int) (Row, error) {
	took := map[ring][]float64{} // seconds
	repetitions, err := g.warm(ctx, c, bytes)
	if err != nil {
		return Row{}, err
	}
	rings := c.rings()
	var rates, ciphers []float64
	for range Turns {
		if c.Link == tlsLink {
			rate, err := cipherRate()
			if err != nil {
				return Row{}, err
			}
			ciphers = append(ciphers, rate)
		}
		for _, r := range rings {
			more, err := g.time(ctx, r, bytes, repetitions[r])
			if err != nil {
				return Row{}, err
			}
			took[r] = append(took[r], more...)
		}
		if !c.Alone {
			rate, err := g.loopback(ctx)
			if err != nil {
				return Row{}, err
			}
			rates = append(rates, rate)
		}
		if c.Between != nil {
			if err := c.Between(ctx, bytes); err != nil {
				return Row{}, err
			}
		}
	}
	busbw := func(r ring) float64 {
		share := 2 * float64(c.World-1) / float64(c.World)
		return share * float64(bytes) / quantile(took[r], 0.5) / 1e9
	}
	row := Row{
		Link: c.Link, Wire: c.Wire, World: c.World, Bytes: bytes,
		Repetitions: len(took[onLink]),
		Summed:      len(took[onLink]) + warmRepetitions + 1,
		MS:          1e3 * quantile(took[onLink], 0.5),
		P99MS:       1e3 * quantile(took[onLink], 0.99),
		BusBW:       busbw(onLink),
	}
	if tree := took[onTree]; tree != nil {
		row.TreeMS, row.TreeP99MS = 1e3*quantile(tree, 0.5), 1e3*quantile(tree, 0.99)
		row.OfRing = row.TreeMS / row.MS
	}
	if len(ciphers) > 0 {
		row.Cipher = quantile(ciphers, 0.5) / 1e9
		row.CipherBusBW = cipherBound(row.Cipher, c.World)
	}
	if c.Alone {
		return row, nil
	}
	row.RawMS, row.RawP99MS = 1e3*quantile(took[onTCP], 0.5), 1e3*quantile(took[onTCP], 0.99)
	row.RawBusBW, row.Loopback = busbw(onTCP), quantile(rates, 0.5)/1e9
	row.OfRaw, row.OfLoopback = row.BusBW/row.RawBusBW, row.BusBW/row.Loopback
	return row, nil
}

// check has the ranks reduce numbers whose sum each of them knows, and holds their bits against
// each other.
func (g *group) check(ctx context.Context, r ring, bytes int) error {
	answers, err := g.exchange(ctx, order{Do: doCheck, Ring: r, Bytes: bytes},
		patience(bytes, 1, len(g.members)))
	if err != nil {
		return err
	}
	for rank, a := range answers {
		if a.Digest != answers[0].Digest {
			return fmt.Errorf("%v: the sum's bits on rank %d differ from rank 0's", r, rank)
		}
	}
	return nil
}

// time returns the seconds of repetitions: each took as long as it took the slowest rank.
func (g *group) time(ctx context.Context, r ring, bytes, repetitions int) ([]float64, error) {
	answers, err := g.exchange(ctx,
		order{Do: doTime, Ring: r, Bytes: bytes, Repetitions: repetitions},
		patience(bytes, repetitions, len(g.members)))
	if err != nil {
		return nil, err
	}
	took := make([]float64, repetitions)
	for rank, a := range answers {
		if len(a.Seconds) != repetitions {
			return nil, fmt.Errorf("rank %d timed %d repetitions of %d", rank, len(a.Seconds),
				repetitions)
		}
		for i, seconds := range a.Seconds {
			took[i] = max(took[i], seconds)
		}
	}
	return took, nil
}

// A rank has leastPatience for an order, plus the time of its bytes at slowest, in bytes a second:
// a tenth of a busy machine's rate.
const (
	leastPatience = 10 * time.Second
	slowest       = 20 << 20
)

// patience returns the time limit for repetitions of this many bytes.
func patience(bytes, repetitions, world int) time.Duration {
	sent := 2 * float64(bytes) * float64(repetitions) * float64(world)
	return leastPatience + time.Duration(sent/slowest*float64(time.Second))
}

// loopback returns the bytes a second of one direction of the connection from rank 0 to rank 1.
func (g *group) loopback(ctx context.Context) (float64, error) {
	answers, err := g.exchange(ctx, order{Do: doStream},
		patience(streamBytes, 1, len(g.members)))
	if err != nil {
		return 0, err
	}
	if len(answers[0].Seconds) != 1 {
		return 0, fmt.Errorf("rank 0 timed %d streams, want 1", len(answers[0].Seconds))
	}
	return streamBytes / answers[0].Seconds[0], nil
}

// quantile returns the smallest of at least one value that is no less than a fraction q of them.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
