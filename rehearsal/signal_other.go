//go:build !unix

package rehearsal

import (
	"errors"
	"os"
	"time"
)

// killSelf does not return.
func killSelf() { os.Exit(137) }

func stopSelf(time.Duration) error {
	return errors.New("rehearsal: stop: this system has no SIGSTOP")
}
