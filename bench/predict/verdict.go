package predict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Comparison gathers the rows of topologies.
type Comparison struct {
	Threshold float64 // efficiency under which a topology does not pay
	rows      map[Topology][]Row
}

// Verdict sums up the rows. A number of workers is one that was simulated; 0: none.
type Verdict struct {
	// HierarchicalFrom is from which number on the hierarchical ring's steps are shorter.
	HierarchicalFrom int `json:"hierarchical_from"`
	// FlatUnder and HierarchicalUnder are the first numbers from which on the efficiency is under
	// the threshold.
	FlatUnder         int     `json:"flat_under"`
	HierarchicalUnder int     `json:"hierarchical_under"`
	Threshold         float64 `json:"threshold"`
	Sentence          string  `json:"sentence"`
}

// Add adds a row.
func (c *Comparison) Add(row Row) {
	if c.rows == nil {
		c.rows = map[Topology][]Row{}
	}
	c.rows[row.Topology] = append(c.rows[row.Topology], row)
}

// Verdict says where one topology beats the other, and where neither pays.
func (c *Comparison) Verdict() Verdict {
	sorted := func(topology Topology) []Row {
		return slices.SortedFunc(slices.Values(c.rows[topology]), func(a, b Row) int {
			return cmp.Compare(a.Workers, b.Workers)
		})
	}
	flat, hierarchical := sorted(Flat), sorted(Hierarchical)
	under := func(r Row) bool { return r.Efficiency < c.Threshold }
	v := Verdict{Threshold: c.Threshold, FlatUnder: from(flat, under),
		HierarchicalUnder: from(hierarchical, under)}
	of := map[int]Row{}
	for _, r := range flat {
		of[r.Workers] = r
	}
	v.HierarchicalFrom = from(hierarchical, func(r Row) bool {
		other, both := of[r.Workers]
		return both && r.Step < other.Step
	})
	said := []string{efficiencySays("the flat ring", v.FlatUnder, c.Threshold)}
	switch {
	case len(hierarchical) == 0:
	case v.HierarchicalFrom == 0:
		said = append(said, "the hierarchical ring is not faster than the flat one at the largest")
	default:
		said = append(said, fmt.Sprintf("the hierarchical ring is faster than the flat one from "+
			"%d on", v.HierarchicalFrom))
	}
	if len(hierarchical) > 0 {
		said = append(said, efficiencySays("the hierarchical ring", v.HierarchicalUnder,
			c.Threshold))
	}
	v.Sentence = "Of these numbers of workers, " + strings.Join(said, "; ") + "."
	return v
}

func efficiencySays(who string, under int, threshold float64) string {
	if under == 0 {
		return fmt.Sprintf("%s has an efficiency of at least %.2f at the largest", who, threshold)
	}
	return fmt.Sprintf("%s has less than %.2f of efficiency from %d on", who, threshold, under)
}

// from returns the number of workers of the first row from which on all are so; 0: none.
func from(rows []Row, so func(Row) bool) int {
	first := 0
	for _, r := range slices.Backward(rows) {
		if !so(r) {
			break
		}
		first = r.Workers
	}
	return first
}
