package hosts

import (
	"context"
	"errors"
	"testing"
)

// One that fails ends the others, and it is its failure that is told.
func TestAtOnce(t *testing.T) {
	mean, err := AtOnce(t.Context(), 3, func(_ context.Context, i int) (float64, error) {
		return float64(i), nil
	})
	if mean != 1 || err != nil {
		t.Errorf("%v, %v", mean, err)
	}
	broken := errors.New("broken")
	_, err = AtOnce(t.Context(), 3, func(ctx context.Context, i int) (float64, error) {
		if i == 2 {
			return 0, broken
		}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if !errors.Is(err, broken) || errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
