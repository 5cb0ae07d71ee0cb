package integration

import (
	"strings"
	"testing"
)

// TestHierarchy is the matrix of losses of workers on hosts of several, whose gradients are summed
// within each host before they go across.
func TestHierarchy(t *testing.T) {
	two := []string{"a", "a", "b", "b"}
	for _, of := range []struct {
		name  string
		hosts []string
		rank  int // that is killed
		flags []string
		rings int // that have a hierarchy
	}{
		{"kill -9 of a host's first worker", two, 2, nil, 1},
		{"kill -9 of a host's last worker, on a short wire", two, 1,
			[]string{"--wire", "bf16", "--error-feedback"}, 1},
		{"kill -9 on the larger host", []string{"a", "a", "a", "b"}, 1,
			[]string{"--topology", "hierarchical"}, 2},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{workers: len(of.hosts), hosts: of.hosts, flags: of.flags})
			dead, id := r.of(of.rank), r.seated(of.rank).text("id")
			dead.kill()
			r.untilRing(len(of.hosts)-1, "worker "+id)
			r.untilMore(10)
			told := 0
			for _, e := range named(r.stop(dead), "notice") {
				if strings.Contains(e.text("text"), "summed within hosts first") {
					told++
				}
			}
			if told < of.rings {
				t.Errorf("%d rings had a hierarchy, want %d", told, of.rings)
			}
		})
	}
}
