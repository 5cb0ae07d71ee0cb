package job

import (
	"context"
	"errors"
	"io"

	"rondo/compute"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/example"
	"rondo/task/label"
	"rondo/task/tree"
	"rondo/telemetry"
)

// balancedTree is the --tree of texts without trees.
const balancedTree = "balanced"

// treeData is the Data of the task tree.
type treeData struct{ *exampleData }

func openTrees(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	d, err := openExampleData(ctx, spec, 0)
	return treeData{d}, err
}

// treeConfig is the network of a job of the task tree.
func treeConfig(spec *rondov1.JobSpec, data Extent) (c model.TreeConfig, err error) {
	initial, err := model.ParseInit(spec.Init)
	if err != nil {
		return c, app.Usage(err)
	}
	cell, err := model.ParseTreeCell(spec.TreeCell)
	if err != nil {
		return c, app.Usage(err)
	}
	c = model.TreeConfig{Cell: cell, Vocab: data.Tokens, Embed: int(spec.Embed),
		Hidden: int(spec.Hidden), Labels: data.Outputs, Init: initial, Seed: spec.Seed}
	return c, app.Usage(c.Validate())
}

// treeNetwork returns the network of a job of the task tree.
func treeNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := treeConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	most := tree.Nodes(spec.Tree == balancedTree, mostTokens(spec, data.Longest))
	return Network{Tensors: c.Layout(), Tokens: c.Vocab, data: exampleBytes * data.Rows,
		make: func(on compute.Device) (weights, error) { return model.NewTree(c, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			return c.PassSize(on, lanes*most), evaluation
		}}, nil
}

// treesOf are examples as the network reads them.
func (d treeData) treesOf(data example.Data) tree.Data {
	return tree.Data{Data: data, Balanced: d.spec.Tree == balancedTree}
}

// NewTask implements Data.
func (d treeData) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := treeConfig(d.spec, d.Extent())
	if err != nil {
		return nil, err
	}
	c.GradientTail = tail
	network, err := model.NewTree(c, device)
	if err != nil {
		return nil, err
	}
	reads := tree.Config{Training: d.treesOf(d.training), EvalData: d.EvalData(), Ledger: ledger}
	if d.evaluation != nil {
		evaluation := d.treesOf(*d.evaluation)
		reads.Evaluation = &evaluation
	}
	return &Task{Task: tree.New(network, reads), close: network.Close}, nil
}

// evaluateTrees measures a network of the task tree on a file of trees, or of texts.
func evaluateTrees(
	ctx context.Context, t *Trained, source string, _ Search,
) (e telemetry.Eval, err error) {
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Outputs, 0)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	s, err := tree.Score(ctx, t.weights.(*model.Tree), set, t.Spec.Tree == balancedTree)
	if err != nil {
		return e, err
	}
	return t.scored(s.Loss, s.Targets, tree.Metrics(s)...), nil
}

// trees labels the trees, or the texts, of standard input.
func (t *Trained) trees(
	ctx context.Context, network *model.Tree, in io.Reader, each func(label.Line) error,
) error {
	r := tree.Reader{Network: network, Words: t.Vocabulary, Labels: t.Outputs,
		Most: int(t.Spec.MaxLength)}
	if t.Spec.Tree == balancedTree {
		r.Encode = t.encode
	}
	return r.Lines(ctx, in, each)
}
