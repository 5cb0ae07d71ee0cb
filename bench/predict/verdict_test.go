package predict

import "testing"

func TestVerdict(t *testing.T) {
	c := Comparison{Threshold: 0.8}
	// The second is slower by chance, at a number that counts for nothing: later ones decide.
	for i, flat := range []float64{1, 1.1, 1.2, 1.5, 3} {
		workers := 16 >> i // in any order
		c.Add(Row{Workers: workers, Topology: Flat, Step: 4 - flat, Efficiency: 1 / (4 - flat)})
	}
	v := c.Verdict()
	want := "Of these numbers of workers, the flat ring has less than 0.80 of efficiency from 2 on."
	if v.Sentence != want || v.FlatUnder != 2 || v.HierarchicalFrom != 0 {
		t.Errorf("%+v", v)
	}
	for workers, step := range map[int]float64{1: 1, 2: 2, 4: 3, 8: 2.8, 16: 2.7} {
		c.Add(Row{Workers: workers, Topology: Hierarchical, Step: step, Efficiency: 0.9})
	}
	v = c.Verdict()
	want = "Of these numbers of workers, the flat ring has less than 0.80 of efficiency from " +
		"2 on; the hierarchical ring is faster than the flat one from 8 on; the hierarchical " +
		"ring has an efficiency of at least 0.80 at the largest."
	if v.Sentence != want || v.HierarchicalFrom != 8 || v.HierarchicalUnder != 0 {
		t.Errorf("%+v", v)
	}
}
