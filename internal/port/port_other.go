//go:build !linux

package port

import (
	"errors"
	"fmt"
)

func reserve() (*Port, error) {
	return nil, fmt.Errorf("ports are reserved on Linux only: %w", errors.ErrUnsupported)
}
