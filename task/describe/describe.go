// Package describe turns a vector into a text: a decoder reads the vector at each step, starts from
// it, or both, and predicts each token from those before it (Goodfellow, Bengio and Courville, Deep
// Learning, figure 10.9). It trains and searches as task/translate does, with vectors for sources.
//
// Of this module it may import model and task/translate.
package describe

import (
	"context"
	"fmt"

	"rondo/model"
	"rondo/task/translate"
)

// VectorUses are the values of --vector-as: how a decoder reads the vector.
func VectorUses() []string {
	return []string{model.ContextConcat: "both", model.ContextState: "state",
		model.ContextInput: "input"}
}

// New makes a task on vectors, [rows, F], whose rows are the sources of the examples. The caller
// keeps the network and closes it.
func New(m *model.Translator, vectors []float32, c translate.Config) (*translate.Task, error) {
	if err := m.SetVectors(vectors); err != nil {
		return nil, err
	}
	c.Vectors = true
	end := c.Training.Set.TargetVocabulary().ID(translate.End)
	if way := m.Config(); way.Ends != model.EndToken && way.End != end {
		return nil, fmt.Errorf("texts end with token %d, and the network with %d", end, way.End)
	}
	return translate.New(m, c)
}

// Rows describes the rows [0, rows), so many together, and calls each in their order.
func Rows(
	ctx context.Context, s *translate.Searcher, rows, together int,
	each func(row int, h translate.Hypothesis) error,
) error {
	for first := 0; first < rows; first += together {
		var sources [][]int32
		for row := first; row < min(rows, first+together); row++ {
			sources = append(sources, []int32{int32(row)})
		}
		found, err := s.Translate(ctx, sources)
		if err != nil {
			return err
		}
		for i, h := range found {
			if err := each(first+i, h); err != nil {
				return err
			}
		}
	}
	return nil
}
