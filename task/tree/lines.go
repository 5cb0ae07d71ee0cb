package tree

import (
	"context"
	"io"

	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/label"
	"rondo/task/lines"
)

// together is the number of trees that are labelled at once.
const together = 16

// Reader labels the trees of a text.
type Reader struct {
	Network *model.Tree
	Words   *corpus.Vocabulary
	Labels  []string
	Most    int // tokens of a line
	// Encode returns the words of a line, over which there is a balanced tree. Nil: each line is a
	// tree, as in examples.ParseTree. Its own labels are not read.
	Encode func(line string) ([]int32, error)

	pass *model.TreePass // nil: none yet
}

// Lines calls each with the lines of a text and their labels: see lines.Reader.
func (r *Reader) Lines(ctx context.Context, in io.Reader, each func(label.Line) error) error {
	defer r.close()
	reader := lines.Reader{Encode: r.Encode, Most: r.Most, Together: together}
	if r.Encode == nil {
		reader.Encode = func(line string) ([]int32, error) {
			nodes, err := examples.ParseTree([]byte(line), nil)
			if r.Network.Config().Cell.Binary() {
				nodes = examples.Binarize(nodes)
			}
			for i := range nodes { // all ask for a label
				nodes[i].Label = []byte{}
			}
			return examples.NodeIDs(r.Words, nodes), err
		}
	}
	return reader.Read(ctx, in, func(texts []string, tokens [][]int32) error {
		var b batch
		for _, ids := range tokens {
			if r.Encode != nil {
				b.balance(ids, 0)
			} else if err := b.read(ids, make([]int32, len(ids)), r.Words.Len()); err != nil {
				return err
			}
			b.roots = append(b.roots, len(b.right)-1)
		}
		if err := r.grow(len(b.in.Children)); err != nil {
			return err
		}
		if _, err := r.pass.Score(b.in); err != nil {
			return err
		}
		return r.give(texts, b.roots, each)
	})
}

// give calls each with the labels of the trees that end at these predictions.
func (r *Reader) give(texts []string, roots []int, each func(label.Line) error) error {
	predicted, probabilities := r.pass.Predicted()
	first := 0
	for i, root := range roots {
		line := label.Line{Text: texts[i], Labels: []string{r.Labels[predicted[root]]},
			Probabilities: probabilities[root : root+1]}
		if r.Encode == nil {
			nodes, err := examples.ParseTree([]byte(texts[i]), nil)
			if err != nil {
				return err
			}
			for at := range nodes {
				if r.Network.Config().Cell.Binary() { // past the nodes of Binarize
					first += max(0, nodes[at].Children-2)
				}
				nodes[at].Label = []byte(r.Labels[predicted[first+at]])
			}
			line.Tree = examples.DrawTree(nodes)
		}
		if err := each(line); err != nil {
			return err
		}
		first = root + 1
	}
	return nil
}

// grow makes a pass for at least so many nodes.
func (r *Reader) grow(nodes int) (err error) {
	if r.pass != nil && r.pass.Nodes() >= nodes {
		return nil
	}
	if r.pass != nil {
		nodes = max(nodes, 2*r.pass.Nodes()) // so that there are few
	}
	r.close()
	r.pass, err = r.Network.NewPass(nodes)
	return err
}

func (r *Reader) close() {
	if r.pass != nil {
		r.pass.Close()
	}
	r.pass = nil
}
