// Package tag gives each token of a text a label: the softmax of a linear function of each step's
// state of a recurrent network, which may read in both directions (Graves and Schmidhuber 2005).
//
// Of this module it may import train.
package tag

import (
	"strings"

	"rondo/train"
)

// Counter counts accuracy and, for BIO labels, the F1 of spans. It implements label.Counter.
type Counter struct {
	labels []string
	spans  bool
}

// NewCounter makes a counter of these labels. They are BIO labels if each is O, or B- or I- with a
// type of span (Ramshaw and Marcus 1995), and some are not O.
func NewCounter(labels []string) Counter {
	c := Counter{labels: labels}
	for _, l := range labels {
		if l == outside {
			continue
		}
		kind, is := strings.CutPrefix(l, begin)
		if !is {
			kind, is = strings.CutPrefix(l, inside)
		}
		if !is || kind == "" {
			return Counter{labels: labels}
		}
		c.spans = true
	}
	return c
}

// Parts of BIO labels.
const (
	outside = "O"
	begin   = "B-"
	inside  = "I-"
)

// The counts.
const (
	tokens = iota
	correct
	bothSpans      // spans that are predicted and right
	predictedSpans // spans
	rightSpans     // spans
	counters
)

// Counters implements label.Counter.
func (c Counter) Counters() int { return counters }

// Count implements label.Counter.
func (c Counter) Count(counts []int64, predicted, right []int32) {
	for i, label := range right {
		counts[tokens]++
		if predicted[i] == label {
			counts[correct]++
		}
	}
	if !c.spans {
		return
	}
	found, want := c.spansOf(predicted), c.spansOf(right)
	counts[predictedSpans] += int64(len(found))
	counts[rightSpans] += int64(len(want))
	for s := range found {
		if want[s] {
			counts[bothSpans]++
		}
	}
}

// span is the tokens [from, to) with their type.
type span struct {
	from, to int
	kind     string
}

// spansOf returns the spans of a row of BIO labels. As in CoNLL's conlleval, an I- that follows
// another type or none begins a span.
func (c Counter) spansOf(labels []int32) map[span]bool {
	spans := map[span]bool{}
	open := span{kind: ""}
	end := func(at int) {
		if open.kind != "" {
			open.to = at
			spans[open] = true
			open.kind = ""
		}
	}
	for i, number := range labels {
		label := c.labels[number]
		kind, continues := strings.CutPrefix(label, inside)
		if continues && kind == open.kind {
			continue
		}
		end(i)
		if label != outside {
			open = span{from: i, kind: strings.TrimPrefix(kind, begin)}
		}
	}
	end(len(labels))
	return spans
}

// Metrics implements label.Counter: accuracy, and with BIO labels f1, that of the spans.
func (c Counter) Metrics(counts []int64) []train.Metric {
	metrics := []train.Metric{{Name: "accuracy",
		Value: float64(counts[correct]) / float64(counts[tokens])}}
	if c.spans {
		f1 := 0.0
		if n := counts[predictedSpans] + counts[rightSpans]; n > 0 {
			f1 = 2 * float64(counts[bothSpans]) / float64(n)
		}
		metrics = append(metrics, train.Metric{Name: "f1", Value: f1})
	}
	return metrics
}
