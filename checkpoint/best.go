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

// ValidationLoss is the metric of a checkpoint that was evaluated at its step: the mean loss in
// nats per token.
const ValidationLoss = "validation_loss"

// ValidationText is the metric that tells the text of ValidationLoss from others: a whole number.
// Manifests of older versions lack it.
const ValidationText = "validation_text"

// evaluated returns a checkpoint's validation loss; false: it has none that is finite.
func (m *Manifest) evaluated() (loss float64, ok bool) {
	loss, ok = m.Metrics[ValidationLoss]
	return loss, ok && !math.IsNaN(loss) && !math.IsInf(loss, 0)
}

// Best opens the checkpoint with the lowest validation loss, as Load does: of equal ones the
// earliest. It compares the checkpoints that were evaluated on the same text as the newest one. It
// passes over those that are damaged, and says which. ErrNone says that no sound one was evaluated.
func (s *Store) Best(ctx context.Context) (best *Checkpoint, damaged []int64, err error) {
	steps, err := s.Steps(ctx)
	if err != nil {
		return nil, nil, err
	}
	least, text := math.Inf(1), 0.0 // 0: not known yet
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
		loss, ok := c.evaluated()
		own := c.Metrics[ValidationText]
		if !ok || text != 0 && own != 0 && own != text {
			continue
		}
		text = cmp.Or(text, own)
		if loss <= least {
			best, least = c, loss
		}
	}
	slices.Reverse(damaged)
	if best == nil {
		return nil, damaged, fmt.Errorf("%w in %s has a validation loss", ErrNone, s.place.at(""))
	}
	return best, damaged, nil
}

// ResolveBest is Resolve, except that for a folder of checkpoints it opens the best one, and the
// newest only if none was evaluated. why says which one it opened. It is empty if the location
// names a step.
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
	c, damaged, err := s.Best(ctx)
	if errors.Is(err, ErrNone) {
		if c, err = s.Latest(ctx); err != nil {
			return nil, "", err
		}
		return c, fmt.Sprintf("step %d: the newest; none was evaluated", c.Step), nil
	}
	if err != nil {
		return nil, "", err
	}
	loss, _ := c.evaluated()
	why = fmt.Sprintf("step %d: lowest validation loss %.3f", c.Step, loss)
	if len(damaged) > 0 {
		why += fmt.Sprintf("; passed over as damaged: step %d", damaged)
	}
	return c, why, nil
}
