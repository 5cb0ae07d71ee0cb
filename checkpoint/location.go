package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"gocloud.dev/blob"
)

// openPlace opens a local path, a file:// URL (also a local path) or another blob URL. The path of
// a blob URL is a prefix within the bucket: s3://bucket/runs/a means s3://bucket?prefix=runs/a/.
func openPlace(
	ctx context.Context, location string, open func(context.Context, string) (*blob.Bucket, error),
	fault faults,
) (place, error) {
	if location == "" {
		return nil, errors.New("no checkpoint folder is given")
	}
	if !strings.Contains(location, "://") {
		return newFolder(location, fault), nil
	}
	u, err := url.Parse(location)
	if err != nil {
		return nil, fmt.Errorf("checkpoint folder %q is not a URL: %w", location, err)
	}
	q := u.Query()
	prefix := q.Get("prefix")
	q.Del("prefix")
	u.RawQuery = q.Encode()
	if u.Scheme == "file" {
		if u.Host != "" || u.RawQuery != "" {
			return nil, fmt.Errorf("checkpoint folder %q: a file URL has no host and no "+
				"parameters but prefix; write file:///path", location)
		}
		return newFolder(filepath.Join(filepath.FromSlash(u.Path), prefix), fault), nil
	}
	if open == nil {
		return nil, fmt.Errorf("checkpoint folder %q: this program opens local folders only",
			location)
	}
	path := strings.Trim(u.JoinPath(prefix).Path, "/")
	if prefix = path; path != "" {
		prefix += "/"
	}
	base := *u
	base.Path, base.RawPath = "/"+path, ""
	u.Path, u.RawPath = "", ""
	b, err := open(ctx, u.String())
	if err != nil {
		return nil, fmt.Errorf("open checkpoint folder %s: %w", location, err)
	}
	return &bucket{b, prefix, &base, fault, time.Now, answerTimeout}, nil
}
