// Package bucket opens the blob storage of --corpus and --checkpoint-dir URLs. It alone links the
// storage drivers. It imports nothing of this module.
package bucket

import (
	"context"
	"fmt"
	"net/url"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // file://
	_ "gocloud.dev/blob/gcsblob"  // gs://
	_ "gocloud.dev/blob/memblob"  // mem://
	_ "gocloud.dev/blob/s3blob"   // s3://
)

// Open opens the bucket that the URL names. The error names the URL's scheme and host only, since
// the rest may hold credentials.
func Open(ctx context.Context, location string) (*blob.Bucket, error) {
	parsed, err := url.Parse(location)
	if err != nil {
		return nil, fmt.Errorf("storage URL %q is not a URL: %w", location, err)
	}
	b, err := blob.OpenBucket(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("storage %s://%s cannot be opened (the schemes are file, s3, gs "+
			"and mem): %w", parsed.Scheme, parsed.Host, err)
	}
	return b, nil
}
