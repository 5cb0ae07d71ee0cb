package main

import (
	"context"
	"errors"
	"time"

	"rondo/bench"
	"rondo/compute"
	rondov1 "rondo/proto/rondo/v1"
)

const (
	// speedWindow is how long training steps are measured at a time, but at least a step.
	speedWindow = time.Second / 4
	// maxStepFlops bounds the products of a measured step on a CPU, by shorter segments: about a
	// second on two cores.
	maxStepFlops = 1e11
)

// trainingSpeed measures the tokens per second of training steps of a job's size on one device.
func trainingSpeed(
	ctx context.Context, device string, spec *rondov1.JobSpec, vocabulary int,
) (speed float64, err error) {
	cell, err := compute.ParseCell(spec.Cell)
	if err != nil {
		return 0, err
	}
	settings, _, err := bench.Settings(device, []string{spec.Precision}, []int{int(spec.Threads)})
	if err != nil {
		return 0, err
	}
	shape := bench.Shape{Cell: cell, Hidden: int(spec.Hidden), Layers: int(spec.Layers),
		Batch: int(spec.Batch), BPTT: int(spec.Bptt), Embed: int(spec.Embed), Vocab: vocabulary,
		Adaptive: spec.AdaptiveSoftmax}
	for device == "cpu" && shape.BPTT > 1 && shape.Flops()*float64(shape.Tokens()) > maxStepFlops {
		shape.BPTT /= 2
	}
	meter := bench.NewMeter(bench.LargestCache())
	err = settings[0].With(func(dev bench.Device) error {
		row, err := meter.Train(ctx, dev, shape, bench.Windows{Length: speedWindow, Count: 3})
		speed = row.TokensPerSecond
		return err
	})
	if ctx.Err() != nil {
		return 0, errors.New("interrupted before the job began")
	}
	return speed, err
}
