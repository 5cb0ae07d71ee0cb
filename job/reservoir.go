package job

import (
	"context"
	"math"

	"rondo/compute"
	"rondo/corpus/series"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/count"
	"rondo/task/regress"
	"rondo/task/reservoir"
)

// reservoirSeries is the Data of the task reservoir.
type reservoirSeries struct {
	*Series
	countedExamples
}

// openReservoir opens the job's series.
func openReservoir(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	opened, err := openSeries(ctx, withoutSampler(spec))
	if err != nil {
		return nil, err
	}
	s := opened.(*Series)
	rows := s.training.Len()
	if rows <= spec.Washout {
		return nil, app.Usagef("corpus %s has %d rows to train on, and --washout %d leaves none: "+
			"lower it, or give a longer series", spec.Corpus, rows, spec.Washout)
	}
	reads := count.NewText(s.training, spec.Washout, int(spec.Batch), int(spec.Bptt))
	if n := reads.Examples(); n > reservoir.MaxExamples {
		return nil, app.Usagef("--bptt %d cuts the series into %d examples, and the most is %d: "+
			"raise it", spec.Bptt, n, reservoir.MaxExamples)
	}
	return reservoirSeries{s, countedExamples{spec, reads}}, nil
}

// reservoirConfig is the network of a job of the task reservoir. The vocabulary has one token more
// than the series has columns.
func reservoirConfig(spec *rondov1.JobSpec, data Extent) (c reservoir.Config, err error) {
	c = reservoir.Config{Units: int(spec.Hidden), Inputs: data.Tokens - 1, Outputs: data.Outputs,
		SpectralRadius: spec.SpectralRadius, Leak: spec.Leak, InputScale: spec.InputScale,
		Ridge: spec.Ridge, Washout: int(spec.Washout), Seed: spec.Seed}
	if c.Inputs < 1 || c.Outputs < 1 || c.Inputs > math.MaxInt16 || c.Units > mostUnits {
		return c, app.Usagef("--hidden %d and a series of %d columns: a reservoir has at most %d "+
			"units, and 1 to %d columns", spec.Hidden, c.Inputs, mostUnits, math.MaxInt16)
	}
	return c, nil
}

// mostUnits bounds --hidden: the sums are its square.
const mostUnits = 8192

// reservoirNetwork is the network of the task reservoir: the sums of its normal equations.
func reservoirNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := reservoirConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	tensors := reservoir.Layout(c)
	width := int64(1 + c.Inputs + c.Units)
	return Network{Tensors: tensors, Tokens: data.Tokens,
		data: numberBytes*data.Rows*int64(c.Inputs) + 4*data.Rows*int64(c.Outputs) +
			4*8*width*width, // the sums of an example, and the equations while they are solved
		make: func(on compute.Device) (weights, error) { return reservoir.New(c, nil, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			return on.TensorSize(2 * tensors[0].Len), evaluation
		}}, nil
}

// NewTask implements Data.
func (d reservoirSeries) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := reservoirConfig(d.job, d.Extent())
	if err != nil {
		return nil, err
	}
	every, err := series.Select(d.all[0].Columns, "")
	if err != nil {
		return nil, err
	}
	data := &reservoir.Series{Units: regress.NewUnits(d.scale, d.targets)}
	for _, s := range d.all {
		data.Inputs = d.scale.Standard(data.Inputs, s, every)
		data.Targets = d.scale.Standard(data.Targets, s, d.targets)
	}
	reads := count.Config{Training: d.reads, EvalData: d.EvalData(), Ledger: ledger, Tail: tail}
	if d.validation != nil {
		first := min(d.job.Washout, d.validation.Len()-1)
		reads.Evaluation = count.NewText(d.validation, first, int(d.job.Batch), int(d.job.Bptt))
	}
	m, err := reservoir.New(c, data, device)
	if err != nil {
		return nil, err
	}
	return newCounting(m, reads)
}
