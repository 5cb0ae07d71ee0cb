package checkpoint

import (
	"context"
	"errors"
	"io"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// silentDriver is an object store that never answers, or stops answering within an object.
type silentDriver struct {
	driver.Bucket
	opens bool
}

func (silentDriver) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }
func (silentDriver) Close() error                       { return nil }

func (silentDriver) ListPaged(ctx context.Context, _ *driver.ListOptions) (
	*driver.ListPage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silentDriver) Attributes(ctx context.Context, _ string) (*driver.Attributes, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silentDriver) Delete(ctx context.Context, _ string, _ *driver.DeleteOptions) error {
	<-ctx.Done()
	return ctx.Err()
}

func (d silentDriver) NewRangeReader(
	ctx context.Context, _ string, _, _ int64, _ *driver.ReaderOptions,
) (driver.Reader, error) {
	if !d.opens {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &silentReader{ctx: ctx}, nil
}

// silentReader delivers one byte and then blocks.
type silentReader struct {
	driver.Reader
	ctx  context.Context
	read bool
}

func (r *silentReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: 2}
}

func (r *silentReader) Read(p []byte) (int, error) {
	if !r.read {
		r.read = true
		return copy(p, "x"), nil
	}
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}

func (r *silentReader) Close() error { return nil }

// TestSilentStore: every request to a silent store ends in time with an error that says why.
func TestSilentStore(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *bucket) error{
		"list": func(ctx context.Context, b *bucket) error {
			_, _, err := b.list(ctx)
			return err
		},
		"open": func(ctx context.Context, b *bucket) error {
			_, _, err := b.open(ctx, "a", "b")
			return err
		},
		"size": func(ctx context.Context, b *bucket) error {
			_, err := b.size(ctx, "a", "b")
			return err
		},
		"remove": func(ctx context.Context, b *bucket) error { return b.remove(ctx, "a", 0) },
		"read": func(ctx context.Context, b *bucket) error {
			b.b = blob.NewBucket(silentDriver{opens: true})
			r, _, err := b.open(ctx, "a", "b")
			if err != nil {
				return err
			}
			time.Sleep(2 * b.answerLimit) // the limit does not cover the time between reads
			_, err = io.ReadAll(r)
			return errors.Join(err, r.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &bucket{b: blob.NewBucket(silentDriver{}), base: &url.URL{},
					answerLimit: time.Minute}
				began := time.Now()
				var cause *silenceError
				if err := ask(t.Context(), b); !errors.As(err, &cause) {
					t.Errorf("error %v", err)
				}
				if took := time.Since(began); took > 3*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
