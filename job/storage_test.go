package job

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"rondo/corpus"
	"rondo/internal/app"
	"rondo/job/jobspec"
)

// TestWhatMayPassIsNoUsage: only what is wrong for everybody is.
func TestWhatMayPassIsNoUsage(t *testing.T) {
	at := func(err error) error {
		return fmt.Errorf("corpus x: %w", &fs.PathError{Op: "read", Path: "x", Err: err})
	}
	calling := func(err error) error { return &url.Error{Op: "Get", URL: "https://x", Err: err} }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{at(syscall.ENOENT), false},
		{at(syscall.EACCES), false},
		{at(syscall.EROFS), false},
		{at(syscall.ENOSPC), true},
		{at(syscall.EDQUOT), true},
		{at(syscall.EIO), true},
		{at(syscall.ESTALE), true},
		{errors.New("invalid UTF-8 at byte 3"), false},
		{&url.Error{Op: "parse", URL: "s3://%", Err: errors.New("invalid escape")}, false},
		{calling(&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}), true},
		{calling(x509.UnknownAuthorityError{}), true},
		{calling(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect",
			syscall.ECONNREFUSED)}), true},
		{context.DeadlineExceeded, true},
		{&corpus.PassingError{Err: errors.New("503")}, true},
	} {
		if got := transient(fmt.Errorf("opening: %w", c.err)); got != c.want {
			t.Errorf("%v: transient: %t", c.err, got)
		}
	}
}

// TestWrongPlacesOfCheckpoints: a folder that nobody can use is the job's fault, and one that is
// full is this machine's.
func TestWrongPlacesOfCheckpoints(t *testing.T) {
	text, err := OpenCorpus(t.Context(), jobspec.Textbook(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = text.Close() }()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for folder, usage := range map[string]bool{
		"s3://%zz/runs":                   true,
		"ftp://host/runs":                 true,
		"s3://shelf?hiden=1":              true,
		"file://elsewhere/run":            true,
		filepath.Join(t.TempDir(), "run"): false,
	} {
		spec := jobspec.Textbook()
		spec.CheckpointDir = folder
		stored, err := OpenCheckpoints(t.Context(), spec, text, nil)
		var wrong *app.UsageError
		if errors.As(err, &wrong) != usage {
			t.Errorf("%s: %v; want a usage error: %t", folder, err, usage)
		}
		if err == nil {
			_ = stored.Close()
		}
	}
}
