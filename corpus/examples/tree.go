package examples

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"rondo/corpus"
)

// Node is a node of a tree. A tree is its nodes, each behind its children, the root last.
type Node struct {
	Word     []byte // of a leaf
	Label    []byte // nil: none
	Children int    // 0: a leaf
}

// Limits of a tree.
const (
	maxTreeNodes = 1 << 16
	maxTreeDepth = 1 << 12 // open brackets
)

// id is the token of a node in a token file. NodeOf reads it.
func (n Node) id(words *corpus.Vocabulary) int32 {
	id := int32(words.Len() + n.Children)
	if n.Children == 0 {
		id = words.ID(string(n.Word))
	}
	id *= 2
	if n.Label != nil {
		id++
	}
	return id
}

// nodeLimit is above the ids of nodes with so many words and children.
func nodeLimit(words, children int) int { return 2 * (words + children + 1) }

// NodeOf decodes the token of a node in a Set. words is the size of the vocabulary. It returns the
// word of a leaf, or an inner node's number of children, and whether the node has a label.
func NodeOf(id int32, words int) (word, children int32, labelled bool) {
	word, labelled = id/2, id%2 == 1
	if word >= int32(words) {
		return 0, word - int32(words), labelled
	}
	return word, 0, labelled
}

// NodeIDs returns the tokens of nodes, as a Set has them.
func NodeIDs(words *corpus.Vocabulary, nodes []Node) []int32 {
	ids := make([]int32, len(nodes))
	for i, n := range nodes {
		ids[i] = n.id(words)
	}
	return ids
}

// trees parses lines of a tree each.
func trees(ctx context.Context, r io.Reader, to rows) error {
	return eachRow(ctx, r, func(_ int, line []byte) error {
		if err := to.text(line); err != nil {
			return err
		}
		return to.end()
	})
}

// bracket is an open bracket.
type bracket struct {
	label    []byte // nil: none yet
	children int
	column   int
}

// ParseTree appends the nodes of the tree that a line has to nodes. They keep the line's memory.
// The form is that of the Penn Treebank (Marcus et al. 1993) and of the Stanford Sentiment Treebank
// (Socher et al. 2013):
//
//	(label word)             a leaf
//	(label tree tree ...)    another node; a tree may be a bare word too
//
// A label may be left out: the first word in brackets is a word if it is alone, and else the label.
// A node of one child is that child; the outer label counts.
func ParseTree(line []byte, nodes []Node) ([]Node, error) {
	p := treeParser{nodes: nodes, before: len(nodes)}
	for at := 0; at < len(line); {
		n := 1
		var err error
		switch c := line[at]; c {
		case ' ', '\t', '\r':
		case '(':
			err = p.open(at + 1)
		case ')':
			err = p.close(at + 1)
		default:
			if n = bytes.IndexAny(line[at:], " \t\r()"); n < 0 {
				n = len(line) - at
			}
			err = p.word(line[at:at+n], at+1)
		}
		if err != nil {
			return nodes, err
		}
		at += n
	}
	if len(p.brackets) > 0 {
		return nodes, fmt.Errorf("column %d: the ( has no ): a line has a whole tree",
			p.brackets[len(p.brackets)-1].column)
	}
	if len(p.nodes) == p.before {
		return nodes, fmt.Errorf("it has no tree: write one, such as (2 (2 a) (3 b))")
	}
	return p.nodes, nil
}

// treeParser has read a part of a line. Columns count bytes from 1.
type treeParser struct {
	nodes    []Node
	before   int // nodes of other lines
	brackets []bracket
}

// in returns the innermost open bracket.
func (p *treeParser) in(column int) (*bracket, error) {
	if len(p.brackets) == 0 && len(p.nodes) > p.before {
		return nil, fmt.Errorf("column %d: more behind the tree: a line has one tree", column)
	}
	if len(p.brackets) == 0 {
		return nil, fmt.Errorf("column %d: a tree begins with (", column)
	}
	return &p.brackets[len(p.brackets)-1], nil
}

func (p *treeParser) open(column int) error {
	if len(p.brackets) == 0 && len(p.nodes) > p.before {
		return fmt.Errorf("column %d: another tree: a line has one", column)
	}
	if len(p.brackets) == maxTreeDepth {
		return fmt.Errorf("column %d: more than %d brackets are open: the tree is too deep", column,
			maxTreeDepth)
	}
	p.brackets = append(p.brackets, bracket{column: column})
	return nil
}

func (p *treeParser) word(word []byte, column int) error {
	in, err := p.in(column)
	if err != nil {
		return err
	}
	if in.label == nil && in.children == 0 {
		in.label = word
		return nil
	}
	in.children++
	return p.node(Node{Word: word}, column)
}

func (p *treeParser) close(column int) error {
	in, err := p.in(column)
	if err != nil {
		return err
	}
	b := *in
	p.brackets = p.brackets[:len(p.brackets)-1]
	if len(p.brackets) > 0 {
		p.brackets[len(p.brackets)-1].children++
	}
	switch {
	case b.children == 0 && b.label == nil:
		return fmt.Errorf("column %d: nothing in brackets: write (label word)", b.column)
	case b.children == 0:
		return p.node(Node{Word: b.label}, column)
	case b.children > 1:
		return p.node(Node{Label: b.label, Children: b.children}, column)
	case b.label != nil:
		p.nodes[len(p.nodes)-1].Label = b.label
	}
	return nil
}

func (p *treeParser) node(n Node, column int) error {
	if len(p.nodes)-p.before == maxTreeNodes {
		return fmt.Errorf("column %d: more than %d nodes: shorten the tree", column, maxTreeNodes)
	}
	p.nodes = append(p.nodes, n)
	return nil
}

// DrawTree writes the tree of some nodes as ParseTree reads it.
func DrawTree(nodes []Node) string {
	var stack []string
	for _, n := range nodes {
		text := string(n.Word)
		if n.Children > 0 {
			text = strings.Join(stack[len(stack)-n.Children:], " ")
			stack = stack[:len(stack)-n.Children]
		}
		if n.Label != nil {
			text = string(n.Label) + " " + text
		}
		stack = append(stack, "("+text+")")
	}
	return strings.Join(stack, " ")
}

// Binarize gives each node two children, or none: (a b c) becomes (a (b c)), where the inner node
// has no label. It may use the memory of nodes.
func Binarize(nodes []Node) []Node {
	const two = 2
	extra := 0
	for _, n := range nodes {
		extra += max(0, n.Children-two)
	}
	if extra == 0 {
		return nodes
	}
	var all []Node
	for _, n := range nodes {
		for ; n.Children > two; n.Children-- {
			all = append(all, Node{Children: two})
		}
		all = append(all, n)
	}
	return all
}

// Balanced appends the numbers of children of a balanced tree over so many words, at least 1: each
// node divides its words into halves, of which the left one has the odd word.
func Balanced(children []int32, words int) []int32 {
	if words == 1 {
		return append(children, 0)
	}
	right := words / 2
	children = Balanced(Balanced(children, words-right), right)
	return append(children, 2)
}
