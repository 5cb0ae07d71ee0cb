package corpus

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stored opens an object in an in-memory bucket.
func stored(t *testing.T, text string) *blobSource {
	t.Helper()
	src, err := openSource(t.Context(), "mem://shelf/k?option=1", bucketOf("k", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.close)
	return src.(*blobSource)
}

func TestAReplacedObjectIsRefused(t *testing.T) {
	src := stored(t, "first text")
	if err := src.bucket.WriteAll(t.Context(), "k", []byte("second, longer"), nil); err != nil {
		t.Fatal(err)
	}
	err := src.passes(t.Context(), t.TempDir(), []func(io.Reader) error{func(io.Reader) error {
		t.Error("the other text is read")
		return nil
	}})
	if err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("%v", err)
	}
}

func TestATransferMayBeSlowButNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := stored(t, "text")
		read := func(pause time.Duration) error {
			return src.read(context.Background(), func(text io.Reader) error {
				for {
					if _, err := text.Read(make([]byte, 1)); err != nil {
						return nil
					}
					time.Sleep(pause) // on the test's fake clock
				}
			})
		}
		if err := read(blobStall - time.Second); err != nil {
			t.Errorf("a slow transfer: %v", err)
		}
		if err := read(blobStall + time.Second); err == nil ||
			!strings.Contains(err.Error(), "sent nothing for 1m0s") {
			t.Errorf("a stalled transfer: %v", err)
		}
	})
}
