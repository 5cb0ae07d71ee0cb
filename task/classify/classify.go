// Package classify gives each text one of C labels: the softmax of a linear function of the pooled
// states of a recurrent network (Goodfellow, Bengio and Courville, Deep Learning, figure 10.5; Dive
// into Deep Learning, "Sentiment Analysis: Using Recurrent Neural Networks").
//
// Of this module it may import train.
package classify

import "rondo/train"

// Counter counts accuracy and F1. It implements label.Counter.
type Counter struct {
	Labels int // C
}

// Of each label: how often it was right and predicted, predicted, and right.
const (
	both = iota
	predictions
	occurrences
	countsPerLabel
)

// Counters implements label.Counter.
func (c Counter) Counters() int { return c.Labels * countsPerLabel }

// Count implements label.Counter.
func (c Counter) Count(counts []int64, predicted, right []int32) {
	p, r := int(predicted[0]), int(right[0])
	counts[p*countsPerLabel+predictions]++
	counts[r*countsPerLabel+occurrences]++
	if p == r {
		counts[r*countsPerLabel+both]++
	}
}

// Metrics implements label.Counter: accuracy, and macro_f1, the mean of the labels' F1. A label
// that neither occurs nor is predicted does not count, as in scikit-learn's f1_score.
func (c Counter) Metrics(counts []int64) []train.Metric {
	var texts, correct int64
	var sum float64
	labels := 0
	for label := range c.Labels {
		of := counts[label*countsPerLabel:]
		texts += of[occurrences]
		correct += of[both]
		if n := of[predictions] + of[occurrences]; n > 0 {
			sum += 2 * float64(of[both]) / float64(n)
			labels++
		}
	}
	return []train.Metric{{Name: "accuracy", Value: float64(correct) / float64(texts)},
		{Name: "macro_f1", Value: sum / float64(labels)}}
}
