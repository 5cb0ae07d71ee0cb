package checkpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// place stores checkpoint folders in a local folder or a bucket. An empty folder name is the place
// itself, which may be a single step's folder. A missing file is fs.ErrNotExist.
type place interface {
	// list returns the names of the step folders with a manifest (complete), in any order. A bucket
	// also returns those without one (partial), which dead writers left; a local folder hides
	// drafts.
	list(ctx context.Context) (complete, partial []string, err error)
	// begin starts a checkpoint that stays invisible until it is committed. It is written under a
	// claim (see Owner).
	begin(ctx context.Context, folder string, claim int64) (draft, error)
	// open returns a file's content and its size in bytes.
	open(ctx context.Context, folder, file string) (io.ReadCloser, int64, error)
	// size returns a file's size in bytes.
	size(ctx context.Context, folder, file string) (int64, error)
	// remove deletes a folder and everything in it but what a later claim wrote. The folder stops
	// being a checkpoint before its first file is deleted. A missing folder is no error.
	remove(ctx context.Context, folder string, claim int64) error
	// createClaim creates an owner's file. If it exists the error is fs.ErrExist.
	createClaim(ctx context.Context, name string, text []byte) error
	// listClaims returns the names of the owners' files, with others.
	listClaims(ctx context.Context) ([]string, error)
	// claimHeld reports whether the process that created an owner's file is known to live.
	claimHeld(ctx context.Context, name string) (bool, error)
	removeClaim(ctx context.Context, name string) error
	// at returns a folder's location as a user would type it.
	at(folder string) string
	close() error
}

// draft is a checkpoint being written. Exactly one of commit and abort is called.
type draft interface {
	// create starts a file and returns its path within the committed folder. A successful Close
	// completes the file; cancelling ctx before Close abandons it.
	create(ctx context.Context, file string) (w io.WriteCloser, path string, err error)
	// commit writes the manifest and replaces the checkpoint that the folder held. If that is of
	// a later claim it stays, and the error is errLaterClaim.
	commit(ctx context.Context, manifest []byte) error
	// abort removes the written files, as far as possible.
	abort()
}

// errLaterClaim says that a folder holds a checkpoint of a later claim.
var errLaterClaim = errors.New("the step has a checkpoint of a later owner of the folder")

const stepPrefix = "step-"

// stepFolder names a step's folder.
func stepFolder(step int64) string { return fmt.Sprintf("%s%08d", stepPrefix, step) }

// parseStepFolder is the inverse of stepFolder.
func parseStepFolder(name string) (step int64, ok bool) {
	digits, ok := strings.CutPrefix(name, stepPrefix)
	if !ok {
		return 0, false
	}
	step, err := strconv.ParseInt(digits, 10, 64)
	return step, err == nil && step >= 0 && stepFolder(step) == name
}

const markBytes = 8

// newMark returns a random name that no other writer uses.
func newMark() string {
	b := make([]byte, markBytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// isMark reports whether s looks like a result of newMark.
func isMark(s string) bool {
	return len(s) == 2*markBytes && strings.Trim(s, "0123456789abcdef") == ""
}

// commas formats an integer with commas between thousands.
func commas(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
