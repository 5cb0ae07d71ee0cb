package model

import "rondo/compute"

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

// passRun is the last run of a pass over examples.
type passRun struct {
	staged []compute.Staged
	loss   compute.Loss
}

// backward runs both passes of a loaded graph, and returns the loss.
func (r *passRun) backward(p *parameters, t *tape, hooks Hooks) (lossSum float64, err error) {
	defer compute.Catch(&err) // kernels may allocate when they first run
	r.staged, p.rows.exclusive = nil, false
	r.loss = compute.Loss{Last: t.output.kernel}
	stage := func(end int) { r.staged = append(r.staged, p.stage(hooks.Stage, r.staged, end)) }
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
		hooks.Behind(&r.loss)
	}
	if hooks.Stage != nil && len(r.staged) == 0 {
		stage(len(p.params))
	}
	return r.loss.Sum(), nil
}

// Staged returns the last run's staged gradients, in the order of their copies.
func (r *passRun) Staged() []compute.Staged { return r.staged }
