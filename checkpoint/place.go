package checkpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// place is where the folders of checkpoints lie: a local folder or a bucket. A folder's name may
// be empty, which is the place itself (when it is a single step's folder). A file that is not
// there is fs.ErrNotExist.
type place interface {
	// list returns the names of the step folders that have a manifest, and of those without one
	// that a dead writer left where drafts are not told apart by name; in any order.
	list(ctx context.Context) (complete, partial []string, err error)
	// begin starts a checkpoint that nobody sees before it is committed.
	begin(ctx context.Context, folder string) (draft, error)
	// open returns a file's content and its size in bytes.
	open(ctx context.Context, folder, file string) (io.ReadCloser, int64, error)
	// size returns a file's size in bytes.
	size(ctx context.Context, folder, file string) (int64, error)
	// remove deletes a folder and everything in it. It is no checkpoint any more before the first
	// of its files is gone. A folder that is not there is no error.
	remove(ctx context.Context, folder string) error
	// at says where a folder is, in the form that a user would type.
	at(folder string) string
	close() error
}

// draft is a checkpoint being written. Exactly one of commit and abort is called.
type draft interface {
	// create starts a file, and says where in the committed folder it will lie. The file is
	// complete when Close has succeeded; to give it up, cancel ctx before Close.
	create(ctx context.Context, file string) (w io.WriteCloser, path string, err error)
	// commit writes the manifest and makes the checkpoint take the place of what the folder held.
	commit(ctx context.Context, manifest []byte) error
	// abort removes what was written, as far as possible.
	abort()
}

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

// newMark returns a random name for what two writers must not share.
func newMark() string {
	b := make([]byte, markBytes)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// isMark says whether s has the form of newMark's result.
func isMark(s string) bool {
	return len(s) == 2*markBytes && strings.Trim(s, "0123456789abcdef") == ""
}

// commas writes an integer with its thousands apart, for people.
func commas(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
