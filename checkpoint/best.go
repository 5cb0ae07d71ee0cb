package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
)

// ValidationLoss names the metric with the mean validation loss in nats per token. Only a
// checkpoint that was evaluated at its step has it.
const ValidationLoss = "validation_loss"

// ValidationText names the metric that identifies the text of ValidationLoss by a whole number.
// Manifests of older versions lack it.
const ValidationText = "validation_text"

// evaluated returns the checkpoint's validation loss. It returns false if there is none or if it is
// not finite.
func (m *Manifest) evaluated() (loss float64, ok bool) {
	loss, ok = m.Metrics[ValidationLoss]
	return loss, ok && !math.IsNaN(loss) && !math.IsInf(loss, 0)
}

// Best opens the checkpoint with the lowest validation loss; of equal losses, the earliest. It
// compares only checkpoints that were evaluated on the same text as the newest one. It skips
// damaged checkpoints and returns their steps. If no sound checkpoint was evaluated, the error
// wraps ErrNone.
func (s *Store) Best(ctx context.Context) (best *Checkpoint, damaged []int64, err error) {
	return s.best(ctx, false)
}

// best is Best; whole: it also reads every byte of the checkpoint.
func (s *Store) best(
	ctx context.Context, whole bool,
) (best *Checkpoint, damaged []int64, err error) {
	evaluated, damaged, err := s.evaluated(ctx)
	if err != nil {
		return nil, damaged, err
	}
	slices.SortStableFunc(evaluated, func(a, b *Checkpoint) int {
		return cmp.Compare(a.Metrics[ValidationLoss], b.Metrics[ValidationLoss])
	})
	for _, c := range evaluated {
		if whole {
			err = c.Verify(ctx)
		}
		var damage *DamageError
		if errors.As(err, &damage) {
			damaged = append(damaged, c.Step)
			continue
		}
		slices.Sort(damaged)
		return c, damaged, err
	}
	return nil, damaged, fmt.Errorf("%w in %s has a validation loss", ErrNone, s.place.at(""))
}

// evaluated opens the checkpoints that were evaluated on the same text as the newest one, in the
// order of their steps, and returns the steps of the damaged ones.
func (s *Store) evaluated(ctx context.Context) (found []*Checkpoint, damaged []int64, err error) {
	steps, err := s.Steps(ctx)
	if err != nil {
		return nil, nil, err
	}
	text := 0.0 // not known yet
	for _, step := range slices.Backward(steps) {
		c, err := s.Load(ctx, step)
		var damage *DamageError
		switch {
		case errors.As(err, &damage):
			damaged = append(damaged, step)
			continue
		case errors.Is(err, ErrNone): // removed meanwhile
			continue
		case err != nil:
			return nil, damaged, err
		}
		own := c.Metrics[ValidationText]
		if _, ok := c.evaluated(); !ok || text != 0 && own != 0 && own != text {
			continue
		}
		text = cmp.Or(text, own)
		found = append(found, c)
	}
	slices.Reverse(found)
	slices.Reverse(damaged)
	return found, damaged, nil
}

// ResolveBest opens a checkpoint by location, as Resolve does. In a folder of checkpoints it opens
// the best one, or the newest if none was evaluated, and reads all of its bytes: a damaged one is
// passed over. why describes this choice; it is empty if the
// location is a single step's folder.
func ResolveBest(
	ctx context.Context, location string, cfg Config,
) (s *Store, c *Checkpoint, why string, err error) {
	if s, err = Open(ctx, location, cfg); err != nil {
		return nil, nil, "", err
	}
	c, err = s.load(ctx, "", anyStep)
	if errors.Is(err, fs.ErrNotExist) {
		c, why, err = s.bestOrLatest(ctx)
	}
	if err != nil {
		return nil, nil, "", errors.Join(err, s.Close())
	}
	return s, c, why, nil
}

// bestOrLatest is ResolveBest for a checkpoint folder.
func (s *Store) bestOrLatest(ctx context.Context) (c *Checkpoint, why string, err error) {
	c, damaged, err := s.best(ctx, true)
	if errors.Is(err, ErrNone) {
		damaged = nil
		if c, err = s.LatestValid(ctx); err != nil {
			return nil, "", err
		}
		why = fmt.Sprintf("step %d: the newest; none was evaluated", c.Step)
		for _, skipped := range slices.Backward(c.Skipped) {
			damaged = append(damaged, skipped.Step)
		}
		return c, why + passedOver(damaged), nil
	}
	if err != nil {
		return nil, "", err
	}
	loss, _ := c.evaluated()
	why = fmt.Sprintf("step %d: lowest validation loss %.3f", c.Step, loss)
	return c, why + passedOver(damaged), nil
}

func passedOver(damaged []int64) string {
	if len(damaged) == 0 {
		return ""
	}
	return fmt.Sprintf("; passed over as damaged: step %d", damaged)
}
