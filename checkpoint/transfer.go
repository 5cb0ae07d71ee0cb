package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
)

// Send writes the checkpoint as a tar stream that Receive reads: its files, and the manifest last.
// The checkpoint must be in a folder, not in a bucket.
func (c *Checkpoint) Send(ctx context.Context, w io.Writer) error {
	out := tar.NewWriter(w)
	names := make([]string, 0, len(c.Files)+1)
	for _, f := range c.Files {
		names = append(names, f.path())
	}
	for _, name := range append(names, manifestName) {
		if err := c.sendFile(ctx, out, name); err != nil {
			return fmt.Errorf("sending %s of %s: %w", name, c.Path, err)
		}
	}
	return out.Close()
}

func (c *Checkpoint) sendFile(ctx context.Context, out *tar.Writer, name string) error {
	content, size, err := c.place.open(ctx, c.folder, name)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	err = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: size,
		Name: path.Join(stepFolder(c.Step), name)})
	if err != nil {
		return err
	}
	_, err = io.Copy(out, content)
	return err
}

// Receive reads a checkpoint that Send wrote into a folder of its own in dir, compares it with its
// manifest, and returns it. A folder that is there already is left as it is, and Receive fails.
func Receive(ctx context.Context, r io.Reader, dir string) (*Manifest, string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, "", err
	}
	draft, err := os.MkdirTemp(dir, ".receiving-")
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = os.RemoveAll(draft) }()
	step, err := receiveFiles(tar.NewReader(r), draft, dir)
	if err != nil {
		return nil, "", err
	}
	store, found, err := Resolve(ctx, draft, Config{})
	if err != nil {
		return nil, "", fmt.Errorf("what was received is no checkpoint: %w", err)
	}
	if err := errors.Join(found.Verify(ctx), store.Close()); err != nil {
		return nil, "", fmt.Errorf("the checkpoint was damaged on its way: %w", err)
	}
	to := filepath.Join(dir, step)
	if err := os.Chmod(draft, 0o755); err != nil {
		return nil, "", err
	}
	return &found.Manifest, to, os.Rename(draft, to)
}

// receiveFiles writes a stream's files to draft, and returns the name of the step's folder, which
// dir must not have yet. All names come from elsewhere: only a step's own files are taken.
func receiveFiles(in *tar.Reader, draft, dir string) (step string, err error) {
	for n := 0; ; n++ {
		header, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return step, nil
		case errors.Is(err, io.EOF):
			return "", errors.New("nothing was received")
		case err != nil:
			return "", fmt.Errorf("the checkpoint did not arrive whole: %w", err)
		case n > maxFiles:
			return "", fmt.Errorf("more than %d files were received", maxFiles)
		}
		folder, name := path.Split(header.Name)
		folder = path.Clean(folder)
		if _, is := parseStepFolder(folder); !is || n > 0 && folder != step ||
			!isFileName(name) && name != manifestName || header.Typeflag != tar.TypeReg {
			return "", fmt.Errorf("%q is no file of a checkpoint", header.Name)
		}
		step = folder
		if to := filepath.Join(dir, step); n == 0 && exists(to) { // before its files travel
			return "", fmt.Errorf("%s: %w: delete it, or choose another folder", to, os.ErrExist)
		}
		if err := receiveFile(in, filepath.Join(draft, name)); err != nil {
			return "", err
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func receiveFile(in io.Reader, at string) error {
	out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) // a tar entry ends at its size
	return errors.Join(err, out.Close())
}
