package job

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"syscall"

	"gocloud.dev/gcerrors"

	"rondo/corpus"
	"rondo/internal/app"
)

// passing reports whether an error of opening a text or a folder says nothing about what a person
// wrote: another try may do better, here or on another machine. A missing file, a name that is no
// URL, a text that is none, and what may not be read are wrong for everybody.
func passing(err error) bool {
	var (
		unread  *corpus.PassingError
		address *url.Error
		number  syscall.Errno
		network net.Error
	)
	switch {
	case errors.As(err, &unread):
		return true
	case errors.As(err, &number): // before net.Error, which each of them is too
		return !slices.Contains([]syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EROFS,
			syscall.ENOENT, syscall.ENOTDIR, syscall.EISDIR, syscall.EEXIST, syscall.EINVAL,
			syscall.ENAMETOOLONG, syscall.ELOOP}, number)
	case errors.As(err, &address) && address.Op == "parse":
		return false
	case errors.As(err, &network): // names that are not found, TLS and timeouts
		return true
	}
	return false
}

// misplaced is an error of opening the folder that a flag names.
func misplaced(flag string, err error) error {
	err = fmt.Errorf("%s: %w", flag, err)
	if passing(err) {
		return err
	}
	return app.Usage(err)
}

// wrongPlace makes a usage error of what storage itself says is wrong with a folder's place, and
// leaves any other failure to be tried again.
func wrongPlace(err error) error {
	switch gcerrors.Code(err) {
	case gcerrors.NotFound, gcerrors.PermissionDenied:
		return app.Usage(err)
	}
	return err
}
