package model

import (
	"fmt"
	"strings"

	"rondo/compute"
)

// maxPassSizes bounds the graphs of a pass over examples.
const maxPassSizes = 8

// passSizes are the numbers of steps of a pass's graphs, from the most to the least: each is about
// two thirds of the one before.
func passSizes(most int) []int {
	sizes := []int{most}
	for n := most; len(sizes) < maxPassSizes; sizes = append(sizes, n) {
		next := (2*n + 2) / 3
		if next == n {
			break
		}
		n = next
	}
	return sizes
}

// examplePass is what passes over examples share: graphs of type G, and their last run.
//
// A batch runs in the smallest graph that it fits, so that a short batch costs less. The longest
// graph is made at once, another when a batch first needs it. They share the memory of activations,
// but each has its kernels' workspaces. The result depends on the graph only by rounding.
type examplePass[G interface {
	comparable
	close()
}] struct {
	B      int
	sizes  [][]int // of each sequence: the graphs' steps, from the most to the least
	graphs []G
	shape  string // of the network, for messages
	memory interface{ close() }
	build  func(steps []int) (G, error)

	staged []compute.Staged
	loss   compute.Loss
}

// open allocates the graphs' common memory and makes the longest graph.
func (p *examplePass[G]) open(allocate func()) error {
	p.graphs = make([]G, len(p.sizes[0]))
	err := p.explain(0, func() (err error) {
		defer compute.Catch(&err)
		allocate()
		return nil
	})
	if err == nil {
		_, err = p.graph(p.steps(0)...)
	}
	if err != nil {
		p.Close()
	}
	return err
}

// steps are those of a graph.
func (p *examplePass[G]) steps(graph int) (steps []int) {
	for _, sizes := range p.sizes {
		steps = append(steps, sizes[graph])
	}
	return steps
}

// explain adds a graph's shape to the error of f.
func (p *examplePass[G]) explain(graph int, f func() error) error {
	if err := f(); err != nil {
		steps := strings.ReplaceAll(strings.Trim(fmt.Sprint(p.steps(graph)), "[]"), " ", " and ")
		return fmt.Errorf("model: a pass of %s steps and %d lanes of %s: %w", steps, p.B, p.shape,
			err)
	}
	return nil
}

// graph returns the smallest graph for so many steps of each sequence, which it makes if there is
// none.
func (p *examplePass[G]) graph(steps ...int) (g G, err error) {
	i := len(p.graphs) - 1
	for k, n := range steps {
		for p.sizes[k][i] < n {
			i--
		}
	}
	if p.graphs[i] == g {
		err = p.explain(i, func() (err error) {
			made, err := p.build(p.steps(i))
			if err == nil {
				p.graphs[i] = made
			}
			return err
		})
	}
	return p.graphs[i], err
}

// Close frees the pass's memory, not the network's.
func (p *examplePass[G]) Close() {
	var none G
	for i, g := range p.graphs {
		if g != none {
			g.close()
			p.graphs[i] = none
		}
	}
	p.memory.close()
}

// backward runs both passes of a loaded graph, and returns the loss.
func (p *examplePass[G]) backward(
	of *parameters, t *tape, hooks Hooks,
) (lossSum float64, err error) {
	defer compute.Catch(&err) // kernels may allocate when they first run
	p.staged, of.rows.exclusive = nil, false
	p.loss = compute.Loss{Last: t.output.kernel}
	stage := func(end int) { p.staged = append(p.staged, of.stage(hooks.Stage, p.staged, end)) }
	t.finished = func(end int) {
		if hooks.Stage != nil && hooks.Behind == nil {
			stage(end)
		}
		if hooks.Finished != nil {
			hooks.Finished(end)
		}
	}
	if err := t.run(hooks.BeforeBackward); err != nil {
		return 0, err
	}
	if hooks.Behind != nil {
		hooks.Behind(&p.loss)
	}
	if hooks.Stage != nil && len(p.staged) == 0 {
		stage(len(of.params))
	}
	return p.loss.Sum(), nil
}

// Staged returns the last run's staged gradients, in the order of their copies.
func (p *examplePass[G]) Staged() []compute.Staged { return p.staged }
