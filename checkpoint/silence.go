package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gocloud.dev/blob"
)

// answerTimeout bounds the wait for an object store's answer, or for the next part of an object.
// Uploads have their caller's deadline instead.
const answerTimeout = time.Minute

// silenceError is the error of an object store that did not answer in time.
type silenceError struct{ limit time.Duration }

func (e *silenceError) Error() string {
	return fmt.Sprintf("the store has not answered for %v", e.limit)
}

// ask makes one request, bounded by the answer limit.
func (b *bucket) ask(ctx context.Context, request func(context.Context) error) error {
	limited, cancel := context.WithTimeoutCause(ctx, b.answerLimit, &silenceError{b.answerLimit})
	defer cancel()
	return silenceCause(limited, request(limited))
}

// silenceCause replaces err by the silence error if that is what ended ctx.
func silenceCause(ctx context.Context, err error) error {
	var cause *silenceError
	if err != nil && errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}

// objectReader is an object being read. Each Read is bounded by the answer limit.
type objectReader struct {
	*blob.Reader
	ctx     context.Context
	silence *time.Timer // cancels ctx when it fires
	cancel  context.CancelCauseFunc
	limit   time.Duration
}

func (b *bucket) openObject(ctx context.Context, key string) (*objectReader, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &objectReader{ctx: ctx, cancel: cancel, limit: b.answerLimit}
	r.silence = time.AfterFunc(r.limit, func() { cancel(&silenceError{r.limit}) })
	var err error
	if r.Reader, err = b.b.NewReader(ctx, key, nil); err != nil {
		err = silenceCause(ctx, err)
		r.end()
		return nil, err
	}
	r.silence.Stop() // until the first Read
	return r, nil
}

func (r *objectReader) end() {
	r.silence.Stop()
	r.cancel(nil)
}

func (r *objectReader) Read(p []byte) (int, error) {
	r.silence.Reset(r.limit)
	n, err := r.Reader.Read(p)
	r.silence.Stop()
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, silenceCause(r.ctx, err)
}

func (r *objectReader) Close() error {
	defer r.end()
	return r.Reader.Close()
}
