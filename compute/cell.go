package compute

import "fmt"

// Cell is the recurrence of a layer: the number of a row in the table of cells.
type Cell int

// The cells; table has their equations. docs/adding-a-cell.md says how to add one.
const (
	RNNTanh        Cell = iota
	RNNReLU             // an Elman RNN of rectified linear units
	GRU                 // reset after the product, as in cuDNN and PyTorch
	GRUResetBefore      // reset before the product, as published and in the textbooks
	LSTM                // with a forget gate
	LSTMPeephole        // an LSTM whose gates read the unit's own cell through weights p
	MGU                 // a GRUResetBefore whose update gate is 1 - its reset gate
	LSTMCoupled         // an LSTM that forgets as much as it takes in
	LSTMNoForget        // an LSTM that forgets nothing
	LeakyLearned        // an Elman RNN that keeps a share of h, 1 - σ of a unit's weight
	Leaky               // the same with the share 1 - RecurrentShape.Leak
	MinGRU              // gates that read x alone: no weights for h
	Clockwork           // an Elman RNN of groups of units that work at different periods

	cellCount = iota
)

// properties describe a cell to everything but its arithmetic.
type properties struct {
	name   string // its --cell
	gates  int    // K: blocks of H rows in the weights
	states int    // 1: h; 2: h and c
	kept   int    // [B, H] tensors of a step that backward reads, besides gates and states
	// P: [H] vectors of weights, each unit its own: no product. Gates read c through them, or they
	// are leaks.
	peepholes   int
	elementwise string // the name of their tensor
	feedforward bool   // gates read x alone: there are no W_hh and b_hh
	leaks       bool   // has a RecurrentShape.Leak, or begins with one
	forget      int    // the number of the forget gate, for ForgetBias; 0: none
	text        Text
}

// Text describes a cell to people: `rondo models` and docs/training.md have it.
type Text struct {
	Gates string // their names in the order of the weights' blocks; "" of a single one
	// Equations, separated by "; ". x: input, h: output and state, c: cell state, h' and c': after
	// the step, σ: logistic function, ⊙: elementwise product, a: W_ih x + b_ih + W_hh h + b_hh,
	// a_g: gate g's rows of it.
	Equations string
	Source    string // the paper
}

// table is the one list of cells. Flags, checks, estimates and tests read it; C and CUDA read
// cpu/kernels/cells_gen.h, generated from it (TestHeader).
func table() [cellCount]properties {
	return [...]properties{
		RNNTanh: {name: "rnn", gates: 1, states: 1, text: Text{
			Equations: "h' = tanh(a)",
			Source:    "Elman (1990); torch.nn.RNN"}},
		RNNReLU: {name: "rnn-relu", gates: 1, states: 1, text: Text{
			Equations: "h' = max(0, a)",
			Source:    "Le et al. (2015), arXiv:1504.00941; torch.nn.RNN"}},
		GRU: {name: "gru", gates: 3, states: 1, kept: 1, text: Text{ // W_hn h + b_hn
			Gates: "r, z, n",
			Equations: "r = σ(a_r), z = σ(a_z); n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn)); " +
				"h' = (1-z) ⊙ n + z ⊙ h",
			Source: "Cho et al. (2014), with the reset behind the product; torch.nn.GRU"}},
		GRUResetBefore: {name: "gru-reset-before", gates: 3, states: 1, kept: 1, // r ⊙ h
			text: Text{
				Gates: "r, z, n",
				Equations: "r = σ(a_r), z = σ(a_z); " +
					"n = tanh(W_in x + b_in + W_hn (r ⊙ h) + b_hn); h' = (1-z) ⊙ n + z ⊙ h",
				Source: "Cho et al. (2014), arXiv:1406.1078"}},
		LSTM: {name: "lstm", gates: 4, states: 2, forget: 1, text: Text{
			Gates: "i, f, g, o",
			Equations: "i = σ(a_i), f = σ(a_f), g = tanh(a_g), o = σ(a_o); " +
				"c' = f ⊙ c + i ⊙ g; h' = o ⊙ tanh(c')",
			Source: "Hochreiter and Schmidhuber (1997), Gers et al. (2000); torch.nn.LSTM"}},
		LSTMPeephole: {name: "lstm-peephole", gates: 4, states: 2, peepholes: 3, forget: 1,
			elementwise: "weight_peephole", text: Text{ // p: i, f, o
				Gates: "i, f, g, o",
				Equations: "i = σ(a_i + p_i ⊙ c), f = σ(a_f + p_f ⊙ c), g = tanh(a_g); " +
					"c' = f ⊙ c + i ⊙ g; o = σ(a_o + p_o ⊙ c'); h' = o ⊙ tanh(c')",
				Source: "Gers and Schmidhuber (2000), Recurrent nets that time and count"}},
		MGU: {name: "mgu", gates: 2, states: 1, kept: 1, text: Text{ // f ⊙ h
			Gates: "f, n",
			Equations: "f = σ(a_f); n = tanh(W_in x + b_in + W_hn (f ⊙ h) + b_hn); " +
				"h' = (1-f) ⊙ h + f ⊙ n",
			Source: "Zhou et al. (2016), arXiv:1603.09420"}},
		LSTMCoupled: {name: "lstm-coupled", gates: 3, states: 2, text: Text{
			Gates: "i, g, o",
			Equations: "i = σ(a_i), g = tanh(a_g), o = σ(a_o); c' = (1-i) ⊙ c + i ⊙ g; " +
				"h' = o ⊙ tanh(c')",
			Source: "Greff et al. (2017), arXiv:1503.04069, CIFG"}},
		LSTMNoForget: {name: "lstm-no-forget", gates: 3, states: 2, text: Text{
			Gates: "i, g, o",
			Equations: "i = σ(a_i), g = tanh(a_g), o = σ(a_o); c' = c + i ⊙ g; " +
				"h' = o ⊙ tanh(c')",
			Source: "Hochreiter and Schmidhuber (1997); Greff et al. (2017), NFG"}},
		LeakyLearned: {name: "leaky-learned", gates: 1, states: 1, kept: 1, // the gradient of p
			peepholes: 1, elementwise: "weight_leak", leaks: true, text: Text{
				Equations: "α = σ(p); h' = (1-α) ⊙ h + α ⊙ tanh(a)",
				Source:    "Mozer (1992); Deep Learning, section 10.9.2"}},
		Leaky: {name: "leaky", gates: 1, states: 1, leaks: true, text: Text{
			Equations: "h' = (1-α) ⊙ h + α tanh(a), α: --leak",
			Source:    "Jaeger et al. (2007); Deep Learning, section 10.9.2"}},
		MinGRU: {name: "min-gru", gates: 2, states: 1, feedforward: true, text: Text{
			Gates: "z, n",
			Equations: "z = σ(W_iz x + b_iz); n = W_in x + b_in; " +
				"h' = (1-z) ⊙ h + z ⊙ n",
			Source: "Feng et al. (2024), arXiv:2410.01201"}},
		// c: 0 in the steps in which the unit works
		Clockwork: {name: "clockwork", gates: 1, states: 2, text: Text{
			Equations: "c' = (c+1) mod p, p: the unit's of --periods; " +
				"h' = tanh(a) if c = 0, else h; " +
				"W_hh has no weights from a unit to one with a longer period",
			Source: "Koutník et al. (2014), arXiv:1402.3511; Deep Learning, section 10.9.3"}},
	}
}

// properties are a cell's row; it must be one of Cells.
func (c Cell) properties() properties {
	if !c.Known() {
		panic(fmt.Sprintf("compute: cell %d is not one of 0..%d", int(c), cellCount-1))
	}
	return table()[c]
}

// Cells returns all cells, in the order of their numbers.
func Cells() []Cell {
	all := make([]Cell, cellCount)
	for i := range all {
		all[i] = Cell(i)
	}
	return all
}

// CellNames returns the names of Cells, in the same order.
func CellNames() []string {
	return namesOf(func(properties) bool { return true })
}

// ForgetCellNames returns the names of the cells that have a forget gate.
func ForgetCellNames() []string {
	return namesOf(func(p properties) bool { return p.forget > 0 })
}

// LeakyCellNames returns the names of the cells that have a leak.
func LeakyCellNames() []string { return namesOf(func(p properties) bool { return p.leaks }) }

// namesOf returns the names of the cells for which match is true.
func namesOf(match func(properties) bool) []string {
	var all []string
	for _, p := range table() {
		if match(p) {
			all = append(all, p.name)
		}
	}
	return all
}

// ParseCell returns the cell whose String is name.
func ParseCell(name string) (Cell, error) {
	at, err := parse(name, CellNames())
	return Cell(at), err
}

// String is the cell's name in --cell.
func (c Cell) String() string {
	if !c.Known() {
		return fmt.Sprintf("cell %d", int(c))
	}
	return c.properties().name
}

// Known says whether the table has the cell.
func (c Cell) Known() bool { return c >= 0 && c < cellCount }

// Gates returns K, the number of H-row blocks in the cell's weights.
func (c Cell) Gates() int { return c.properties().gates }

// Text returns the cell's description.
func (c Cell) Text() Text { return c.properties().text }

// States returns the number of [B, H] tensors carried between segments: h, or h and c.
func (c Cell) States() int { return c.properties().states }

// Kept returns the number of [B, H] tensors that a step saves for backward, besides gates and
// states.
func (c Cell) Kept() int { return c.properties().kept }

// Peepholes returns P, the number of [H] vectors in the cell's elementwise weights.
func (c Cell) Peepholes() int { return c.properties().peepholes }

// Elementwise returns the name of the tensor of these weights: weight_peephole or weight_leak.
func (c Cell) Elementwise() string { return c.properties().elementwise }

// Leaks reports whether the cell has a leak: see RecurrentShape.
func (c Cell) Leaks() bool { return c.properties().leaks }

// ResetsBefore reports whether the last gate's rows of W_hh multiply a gate's product with h.
func (c Cell) ResetsBefore() bool { return c == GRUResetBefore || c == MGU }

// HiddenGates returns the number of H-row blocks in W_hh and b_hh: K, or 0 if there are none.
func (c Cell) HiddenGates() int {
	if c.properties().feedforward {
		return 0
	}
	return c.Gates()
}

// Tensors returns the number of weight tensors in a layer of the cell.
func (c Cell) Tensors() int { return 2 + 2*min(c.HiddenGates(), 1) + min(c.Peepholes(), 1) }

// ForgetGate returns the number of the forget gate, and whether there is one.
func (c Cell) ForgetGate() (gate int, ok bool) {
	gate = c.properties().forget
	return gate, gate > 0
}
