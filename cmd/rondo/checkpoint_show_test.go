package main

import (
	"strings"
	"testing"

	"rondo/job"
)

// A network of two directions shows the width of each.
func TestSummaryOfDirections(t *testing.T) {
	for backward, want := range map[int64]string{
		0: "gru, 2 x 24 hidden units in each direction, ",
		8: "gru, 2 x 24 hidden units forward and 8 backward, ",
	} {
		var out strings.Builder
		err := printSummary(&out, &job.Summary{Cell: "gru", Layers: 2, Hidden: 24,
			Bidirectional: true, HiddenBackward: backward})
		if err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%v, %s; want %q", err, &out, want)
		}
	}
}
