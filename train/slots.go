package train

import (
	"context"

	"rondo/compute"
	"rondo/train/agree"
)

// Slots are the optimizer's values per parameter, as this rank keeps them. They outlive rings. All
// ranks call Meet, Deal, Alike and Gather together.
type Slots interface {
	agree.Shards
	// Enter names the next ring. Fresh or Deal follows before its first step.
	Enter(r agree.Ranks)
	// Fresh sets the slots of a new job.
	Fresh() error
	// Load sets the slots of a snapshot. It may keep the memory.
	Load(slots [][]float32)
	// CatchUp prepares for parameters that are copied from another rank, of this version.
	CatchUp(to agree.Version)
	// Commit says that a step or round is committed.
	Commit()
	// Forget drops the slots.
	Forget()
	// Alike compares slots that more than one rank keeps, but that Same does not return.
	Alike(ctx context.Context) error
	// Gather collects all slots on rank 0, or on all ranks, so that Host works until the next step.
	Gather(ctx context.Context, all bool) error
	// Same returns the slots that are the same on all ranks between two steps, device memory.
	Same() [][]float32
	// Own returns the slots of all parameters, for an update by this rank alone, device memory.
	Own() [][]float32
	// Host returns the slots of all parameters in host memory, until the next step.
	Host() ([][]float32, error)
	Close()
}

// Updater is a Sum that also updates: after Finish it holds the new parameters.
type Updater interface {
	Sum
	// Norm returns the norm of the summed gradient. It is not finite if the step must be skipped.
	Norm() float64
	// Update copies the new parameters to the task. It is not called in a skipped step.
	Update()
}

// newSlots makes this rank's slots for n parameters.
func (u *updater) newSlots(n int) error {
	if u.cfg.NewSlots == nil {
		whole := &wholeSlots{dev: u.dev, inHost: u.cfg.HostMemory}
		u.slots = whole
		for range u.slotNames() {
			whole.slots = append(whole.slots, u.dev.Alloc(n))
		}
		return nil
	}
	clip := compute.Clip{Share: 1}
	if !u.cfg.Clip.BeforeSum() {
		clip = u.cfg.Clip.Args(1, 0)
	}
	slots, err := u.cfg.NewSlots(agree.SlotsConfig{Device: u.dev, Clipper: u.clipper,
		Gradient: u.exchange.gradient, Params: u.task.Params(), Slots: u.innerSlots(), Clip: clip,
		Compare: u.cfg.CheckEvery > 0, Copy: u.copyWithin, Version: u.version,
		Updates:   func() int64 { return u.progress.Updates },
		Nonfinite: func() bool { return u.exchange.own.nonfinite > 0 },
		Updating: func(ctx context.Context, step int64) error {
			return u.beginPhase(ctx, PhaseUpdate, step)
		},
		Lap: u.laps.end, Replace: u.dropRecording, Now: u.exchange.now,
		Notice: func(text string) { u.cfg.Observer.Notice(text) }})
	if err == nil {
		u.slots = slots
	}
	return err
}

// dropRecording closes the seat of a device that records: a recording may hold slots that are about
// to be freed.
func (c *core) dropRecording() {
	if c.records && c.seat != nil {
		c.seat.Close()
		c.seat = nil
	}
}

// ownSlots returns the slots of all parameters, for an update by this rank alone.
func (c *core) ownSlots() (slots [2][]float32) {
	copy(slots[:], c.slots.Own()[:c.innerSlots()])
	return slots
}

// wholeSlots keeps the slots of all parameters on each rank, the outer optimizer's included.
type wholeSlots struct {
	dev    compute.Device
	inHost bool        // device memory is host memory
	slots  [][]float32 // device memory
	host   [][]float32 // copies of slots; reused
}

func (s *wholeSlots) Meet(context.Context) (gaps int, err error) { return 0, nil }
func (s *wholeSlots) Deal(context.Context) error                 { return nil }
func (s *wholeSlots) Enter(agree.Ranks)                          {}
func (s *wholeSlots) CatchUp(agree.Version)                      {}
func (s *wholeSlots) Commit()                                    {}
func (s *wholeSlots) Forget()                                    {}
func (s *wholeSlots) Alike(context.Context) error                { return nil }
func (s *wholeSlots) Gather(context.Context, bool) error         { return nil }
func (s *wholeSlots) Same() [][]float32                          { return s.slots }
func (s *wholeSlots) Own() [][]float32                           { return s.slots }

func (s *wholeSlots) Fresh() error {
	for _, x := range s.slots {
		s.dev.Zero(x)
	}
	return nil
}

func (s *wholeSlots) Load(slots [][]float32) {
	for i, x := range slots {
		s.dev.Upload(s.slots[i], x)
	}
}

func (s *wholeSlots) Host() ([][]float32, error) {
	if s.inHost {
		return s.slots, nil
	}
	for i, x := range s.slots {
		if i == len(s.host) {
			s.host = append(s.host, make([]float32, len(x)))
		}
		s.dev.Download(s.host[i], x)
	}
	return s.host, nil
}

func (s *wholeSlots) Close() {
	for _, x := range s.slots {
		s.dev.Free(x)
	}
	s.slots = nil
}
