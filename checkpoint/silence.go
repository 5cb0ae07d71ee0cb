package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gocloud.dev/blob"
)

// answerTimeout is how long an object store may take for an answer, or for the next part of an
// object. Uploads have their caller's deadline.
const answerTimeout = time.Minute

// silent is an object store's silence, as a person should read it.
type silent struct{ limit time.Duration }

func (e *silent) Error() string { return fmt.Sprintf("the store has not answered for %v", e.limit) }

// ask makes one request within the store's time to answer.
func (b *bucket) ask(ctx context.Context, request func(context.Context) error) error {
	limited, cancel := context.WithTimeoutCause(ctx, b.patience, &silent{b.patience})
	defer cancel()
	return heard(limited, request(limited))
}

// heard returns the silence that ended ctx in place of the error that followed from it.
func heard(ctx context.Context, err error) error {
	var cause *silent
	if err != nil && errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}

// awaited is an object being read, of which each part comes in time or the read fails.
type awaited struct {
	*blob.Reader
	ctx     context.Context
	silence *time.Timer // ends ctx
	cancel  context.CancelCauseFunc
	limit   time.Duration
}

// await opens an object.
func (b *bucket) await(ctx context.Context, key string) (*awaited, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &awaited{ctx: ctx, cancel: cancel, limit: b.patience}
	a.silence = time.AfterFunc(a.limit, func() { cancel(&silent{a.limit}) })
	var err error
	if a.Reader, err = b.b.NewReader(ctx, key, nil); err != nil {
		err = heard(ctx, err)
		a.end()
		return nil, err
	}
	a.silence.Stop() // until something is asked for
	return a, nil
}

func (a *awaited) end() {
	a.silence.Stop()
	a.cancel(nil)
}

func (a *awaited) Read(p []byte) (int, error) {
	a.silence.Reset(a.limit)
	n, err := a.Reader.Read(p)
	a.silence.Stop()
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, heard(a.ctx, err)
}

func (a *awaited) Close() error {
	defer a.end()
	return a.Reader.Close()
}
