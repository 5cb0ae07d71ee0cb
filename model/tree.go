package model

import (
	"fmt"
	"slices"
	"strings"

	"rondo/compute"
)

// TreeCell is how a Tree computes a node from its children.
type TreeCell int

// The cells of trees. N: nodes; E, H: widths.
const (
	// TreeLSTM is the N-ary TreeLSTM of two children: equations 9 to 14 of Tai, Socher and Manning
	// 2015 (arXiv:1503.00075).
	TreeLSTM TreeCell = iota
	// TreeChildSum is the child-sum TreeLSTM, of any number of children: equations 2 to 8.
	TreeChildSum
	// TreeRNN is the recursive network of two children (Socher et al. 2011; Goodfellow, Bengio and
	// Courville, Deep Learning, section 10.6).
	TreeRNN
	// TreeBag is the mean of the words' embeddings, which knows nothing of the tree.
	TreeBag
)

// TreeCellText is a cell's name, its equations for an inner node, separated by "; ", and its
// source. l and r are the children's values, k numbers them; a leaf has its word's x instead.
type TreeCellText struct{ Name, Equations, Source string }

// TreeCells returns the cells' texts, in order.
func TreeCells() []TreeCellText {
	const tai = "Tai et al. (2015), arXiv:1503.00075, equations "
	return []TreeCellText{
		TreeLSTM: {"lstm", "i, o = σ(U [h_l; h_r] + b), u = tanh(U [h_l; h_r] + b); " +
			"f_k = σ(U_k [h_l; h_r] + b_f); c = i ⊙ u + f_l ⊙ c_l + f_r ⊙ c_r; " +
			"h = o ⊙ tanh(c)", tai + "9 to 14"},
		TreeChildSum: {"child-sum", "s = Σ h_k; i, o = σ(U s + b), u = tanh(U s + b); " +
			"f_k = σ(U_f h_k + b_f); c = i ⊙ u + Σ f_k ⊙ c_k; h = o ⊙ tanh(c)", tai + "2 to 8"},
		TreeRNN: {"rnn", "h = tanh(U [h_l; h_r] + b)",
			"Socher et al. (2011); Deep Learning, section 10.6"},
		TreeBag: {"bag", "h = the mean of the words' embeddings",
			"a bag of words, for comparison"},
	}
}

// TreeCellNames returns the names of the cells, in order.
func TreeCellNames() (names []string) {
	for _, cell := range TreeCells() {
		names = append(names, cell.Name)
	}
	return names
}

// ParseTreeCell parses the value of --tree-cell.
func ParseTreeCell(name string) (TreeCell, error) {
	i := slices.Index(TreeCellNames(), name)
	if i < 0 {
		return 0, fmt.Errorf("--tree-cell %q: give %s", name,
			strings.Join(TreeCellNames(), ", "))
	}
	return TreeCell(i), nil
}

// Binary reports whether each node has two children, or none.
func (c TreeCell) Binary() bool { return c == TreeLSTM || c == TreeRNN }

// TreeConfig is the shape of a Tree and its initial weights.
type TreeConfig struct {
	Cell   TreeCell
	Vocab  int // V
	Embed  int // E
	Hidden int // H; a TreeBag has none
	Labels int // C

	Init         Init
	Seed         uint64
	GradientTail int // see Config
}

// width is that of a node's vector.
func (c TreeConfig) width() int {
	if c.Cell == TreeBag {
		return c.Embed
	}
	return c.Hidden
}

// children is the number of children whose vectors one product reads together.
func (c TreeConfig) children() int {
	if c.Cell.Binary() {
		return 2
	}
	return 1
}

// config returns the fields that the initial weights depend on.
func (c TreeConfig) config() Config {
	return Config{Vocab: c.Vocab, Embed: c.Embed, Hidden: c.width(), Layers: 1, Init: c.Init,
		Seed: c.Seed, GradientTail: c.GradientTail}
}

// Validate returns nil, or an error of one line that names the wrong flag.
func (c TreeConfig) Validate() error {
	if c.Cell < TreeLSTM || c.Cell > TreeBag {
		return fmt.Errorf("--tree-cell %d does not exist", int(c.Cell))
	}
	if c.Embed < 1 {
		return fmt.Errorf("--embed %d: trees have words with embeddings of at least 1 number",
			c.Embed)
	}
	if c.Labels < 1 {
		return fmt.Errorf("--outputs %d: a network has at least one label", c.Labels)
	}
	return c.config().Validate()
}

// Names of the tensors of trees.
const (
	composeWeight = "compose.weight"
	composeBias   = "compose.bias"
	forgetWeight  = "forget.weight"
	forgetBias    = "forget.bias"
	leafWeight    = "leaf.weight"
	leafBias      = "leaf.bias"
)

// Layout returns each tensor's place in the flat parameters, in the order in which backward
// finishes their gradients. A TreeBag has none of leaves and nodes, and E for H.
//
//	output.weight    [C, H]
//	output.bias      [C]
//	compose.weight   TreeLSTM: [3H, 2H], i, o, u of both children; TreeChildSum: [3H, H];
//	                 TreeRNN: [H, 2H]
//	compose.bias     [3H] or [H]
//	forget.weight    TreeLSTM: [2H, 2H], of the left and the right child; TreeChildSum: [H, H]
//	forget.bias      [H], of each child
//	leaf.weight      [3H, E]; TreeRNN: [H, E]
//	leaf.bias        TreeRNN: [H]; the others' is compose.bias
//	embedding.weight [V, E]
func (c TreeConfig) Layout() []View {
	var l layouter
	H, k := c.width(), c.children()
	l.add(roleOutput, outputWeight, c.Labels, H)
	l.add(roleOutputBias, outputBias, c.Labels)
	switch c.Cell {
	case TreeLSTM, TreeChildSum:
		l.add(roleProjection, composeWeight, inputGates*H, k*H)
		l.add(roleDenseBias, composeBias, inputGates*H)
		l.add(roleProjection, forgetWeight, k*H, k*H)
		l.add(roleDenseBias, forgetBias, H)
		l.add(roleProjection, leafWeight, inputGates*H, c.Embed)
	case TreeRNN:
		l.add(roleProjection, composeWeight, H, k*H)
		l.add(roleDenseBias, composeBias, H)
		l.add(roleProjection, leafWeight, H, c.Embed)
		l.add(roleDenseBias, leafBias, H)
	}
	l.add(roleEmbedding, embeddingWeight, c.Vocab, c.Embed)
	return l.views
}

// Tree is a recursive network: it computes a vector of each node of a tree, from the leaves up, and
// from it the node's label. For each height one product computes the nodes of all trees.
//
//	e = a row of the embedding                    a leaf's word
//	p = softmax(W h + b)                          the label of a node
//
// TreeRNN, of a node with the children l and r:
//
//	h = tanh(V e + c)                             a leaf
//	h = tanh(U [h_l; h_r] + d)
//
// TreeLSTM; a leaf has no children, so c = i ⊙ u, and the other nodes have no word:
//
//	i, o, u = σ, σ, tanh of V e + b, or of U [h_l; h_r] + b
//	f_l, f_r = σ(F [h_l; h_r] + b_f)              each from both children
//	c = i ⊙ u + f_l ⊙ c_l + f_r ⊙ c_r
//	h = o ⊙ tanh(c)
//
// TreeChildSum has U (Σ h_k) for U [h_l; h_r], and for each child k f_k = σ(F h_k + b_f).
// TreeBag: h is the mean of e over the words below the node.
type Tree struct {
	parameters
	config TreeConfig
}

// NewTree makes a network with initial weights, on a device whose memory is the host's. It fails
// if c is not valid, or if the device lacks memory. Close frees it.
func NewTree(c TreeConfig, dev compute.Device) (*Tree, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	t := &Tree{parameters: parameters{dev: dev, views: c.Layout()}, config: c}
	if err := t.allocate(c.GradientTail); err != nil {
		return nil, fmt.Errorf("model: a network of trees: %w", err)
	}
	t.Initialise()
	return t, nil
}

// Initialise resets the parameters to the initial weights.
func (t *Tree) Initialise() { t.initialise(t.config.config()) }

// Config returns the network's configuration.
func (t *Tree) Config() TreeConfig { return t.config }

// Finishes returns the ends of the gradient prefixes that a pass finishes in turn.
func (t *Tree) Finishes() []int { return []int{find(t.views, outputBias).end(), Span(t.views)} }

// Trees are the input of a TreePass: the nodes of some trees, one tree behind the other, each node
// behind its children.
type Trees struct {
	Children []int32 // of each node; 0: a leaf
	Words    []int32 // of leaves; of other nodes not read
	Targets  []int32 // the node's label; -1: none
}

// forest is the nodes of Trees in the order in which they are computed: by height.
type forest struct {
	row     []int32 // of each node, in this order
	node    []int32 // of each row
	words   []int32 // of the leaves, which are the first rows
	starts  []int   // the first row of each height, and the end
	parts   []int   // the first child of each row in children, and the end
	below   []int32 // rows of the children, row by row
	leaves  []int32 // below each row
	labels  []int32 // the targets, in the order of the nodes
	labeled []int32 // rows of the nodes with targets

	height, stack, first, next []int32 // of the nodes; first child and next sibling
}

// load orders trees. Their numbers must be below these.
func (f *forest) load(in Trees, vocabulary, labels int, binary bool) error {
	n := len(in.Children)
	if len(in.Words) != n || len(in.Targets) != n {
		return fmt.Errorf("model: %d words and %d targets for %d nodes", len(in.Words),
			len(in.Targets), n)
	}
	f.height, f.first = slices.Grow(f.height[:0], n)[:n], slices.Grow(f.first[:0], n)[:n]
	f.next, f.stack = slices.Grow(f.next[:0], n)[:n], f.stack[:0]
	most := int32(0)
	for i, k := range in.Children {
		if k < 0 || int(k) > len(f.stack) || k == 1 || binary && k > 2 {
			return fmt.Errorf("model: node %d cannot have %d children", i, k)
		}
		if k == 0 && (in.Words[i] < 0 || int(in.Words[i]) >= vocabulary) {
			return fmt.Errorf("model: node %d has word %d; the vocabulary has %d", i, in.Words[i],
				vocabulary)
		}
		if in.Targets[i] < -1 || int(in.Targets[i]) >= labels {
			return fmt.Errorf("model: node %d has label %d of %d", i, in.Targets[i], labels)
		}
		f.height[i], f.first[i], f.next[i] = 0, -1, -1
		children := f.stack[len(f.stack)-int(k):]
		for at, child := range children {
			f.height[i] = max(f.height[i], f.height[child]+1)
			if f.first[i] = children[0]; at > 0 {
				f.next[children[at-1]] = child
			}
		}
		most = max(most, f.height[i])
		f.stack = append(f.stack[:len(f.stack)-int(k)], int32(i))
	}
	f.order(in, most)
	return nil
}

// order numbers the rows, and lists what they are computed from.
func (f *forest) order(in Trees, most int32) {
	n := len(in.Children)
	f.starts = append(f.starts[:0], make([]int, most+2)...)
	for _, h := range f.height {
		f.starts[h+1]++
	}
	for h := range most + 1 {
		f.starts[h+1] += f.starts[h]
	}
	f.row, f.node = slices.Grow(f.row[:0], n)[:n], slices.Grow(f.node[:0], n)[:n]
	f.leaves = slices.Grow(f.leaves[:0], n)[:n]
	f.words, f.below, f.parts = f.words[:0], f.below[:0], append(f.parts[:0], 0)
	f.labels, f.labeled = f.labels[:0], f.labeled[:0]
	for i, h := range f.height { // starts[h] counts up to the next height's
		f.row[i] = int32(f.starts[h])
		f.node[f.starts[h]] = int32(i)
		f.starts[h]++
	}
	copy(f.starts[1:], f.starts)
	f.starts[0] = 0
	for row, i := range f.node {
		f.leaves[row] = 0
		for child := f.first[i]; child >= 0; child = f.next[child] {
			f.below = append(f.below, f.row[child])
			f.leaves[row] += f.leaves[f.row[child]]
		}
		f.parts = append(f.parts, len(f.below))
		if in.Children[i] == 0 {
			f.leaves[row] = 1
			f.words = append(f.words, in.Words[i])
		}
	}
	for i, label := range in.Targets {
		if label >= 0 {
			f.labels, f.labeled = append(f.labels, label), append(f.labeled, f.row[i])
		}
	}
}
