package train

import "rondo/compute"

// averager keeps Config.Average.
type averager struct{ *core }

// average returns the average of the parameters, device memory: the last slot.
func (c averager) average() []float32 {
	own := c.slots.Own()
	return own[len(own)-1]
}

// addToAverage adds the parameters after the update of a step. It is a part of the update.
func (c averager) addToAverage(step int64) {
	if !c.cfg.Average.On() {
		return
	}
	next := c.cfg.Average.Next(&c.progress.Average, step)
	if next == 0 {
		return
	}
	c.tear()
	average, params := c.average(), c.task.Params()
	if next == 1 {
		c.copyWithin(average, params)
	} else {
		c.dev.Scale(average, float32(1-next))
		// SGD is p -= lr g: it adds next times the parameters, with the same bits on every device
		c.dev.Update(compute.Update{Optimizer: compute.SGD, LR: float32(-next)}, average, params,
			nil, nil)
	}
	c.progress.Average.Count++
	c.laps.end("average")
}

// withAverage calls f while the average, once it has begun, is in the place of the parameters. f
// may read the parameters and must not change them. If f panics, the state is dropped.
func (c averager) withAverage(f func() error) error {
	if c.progress.Average.Count == 0 {
		return f()
	}
	c.tear()
	defer c.forgetTorn()
	c.swap(c.average(), c.task.Params())
	err := f()
	c.swap(c.average(), c.task.Params())
	c.torn = false
	return err
}

// swap exchanges the values of two tensors in device memory, through host memory if the device has
// its own.
func (c averager) swap(a, b []float32) {
	if c.cfg.HostMemory {
		for i, x := range a {
			a[i], b[i] = b[i], x
		}
		return
	}
	for len(a) > 0 {
		n := min(len(a), len(c.memory.Piece))
		c.dev.Download(c.memory.Piece[:n], a[:n])
		c.copyWithin(a[:n], b[:n])
		c.dev.Upload(b[:n], c.memory.Piece[:n])
		a, b = a[n:], b[n:]
	}
}

// showAverage makes the average the parameters of a snapshot, and the parameters its slot
// TrainingWeights. Where the average has not begun, the slot has a copy of the parameters.
func (s *Snapshot) showAverage() {
	last := &s.Slots[len(s.Slots)-1].Data
	if s.Progress.Average.Count == 0 {
		*last = s.Params
	} else {
		s.Params, *last = *last, s.Params
	}
}
