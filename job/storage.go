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

// transient reports whether opening a text or a folder failed for a reason that may pass, so that a
// retry, here or on another machine, may succeed. Mistakes do not pass: a missing file, an invalid
// URL, a file that is no text, missing permissions.
func transient(err error) bool {
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
	case errors.As(err, &network): // unknown host names, TLS and timeouts
		return true
	}
	return false
}

// folderError is an error from opening the folder that a flag names.
func folderError(flag string, err error) error {
	err = fmt.Errorf("%s: %w", flag, err)
	if transient(err) {
		return err
	}
	return app.Usage(err)
}

// storageError turns the storage's "not found" and "permission denied" into usage errors. Other
// errors may be retried.
func storageError(err error) error {
	switch gcerrors.Code(err) {
	case gcerrors.NotFound, gcerrors.PermissionDenied:
		return app.Usage(err)
	}
	return err
}
