package job

import (
	"cmp"
	"context"

	"rondo/internal/app"
	"rondo/model"
)

// Flow measures how far back in time the loss of a language model reaches, up to so many steps, in
// windows spread over a text; "" is the training's. A window has twice as many tokens: the first
// half makes the state.
func (t *Trained) Flow(
	ctx context.Context, source string, steps, windows int,
) (*model.Flow, error) {
	network, ok := t.weights.(*model.Model)
	if !ok {
		return nil, app.Usagef("checkpoint %s reads both ways (--bidirectional), so that its "+
			"gradients have no one direction in time: give another", t.Path)
	}
	source = cmp.Or(source, t.Spec.Corpus)
	text, err := t.openText(ctx, source)
	if err != nil {
		return nil, err
	}
	defer func() { _ = text.Close() }()
	tokens, length := text.Tokens(), 2*steps
	places := tokens.Len() - int64(length)
	if places < 1 {
		return nil, app.Usagef("corpus %s has %d tokens, and --steps %d needs %d: lower it, or "+
			"give a longer text", source, tokens.Len(), steps, length+1)
	}
	windows = int(min(int64(windows), places))
	inputs, targets := make([]int32, length*windows), make([]int32, windows)
	window := make([]int32, length+1)
	for b := range windows {
		if err := tokens.ReadTokens(window, places*int64(b)/int64(windows)); err != nil {
			return nil, err
		}
		for i, id := range window[:length] {
			inputs[i*windows+b] = id
		}
		targets[b] = window[length]
	}
	flow, err := network.Flow(inputs, targets, steps)
	return flow, app.Usage(err)
}
