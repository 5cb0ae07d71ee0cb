package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ReadInto reads a file's tensors into dst, by name. Each shape must agree, and the file must hold
// exactly the tensors of dst. After an error the content of dst is undefined.
//
// The file's SHA-256 is checked as it is read. BF16 is widened to float32; I64 and U64 are
// converted where float32 holds them exactly.
func (c *Checkpoint) ReadInto(ctx context.Context, file string, dst []Tensor) error {
	return c.read(ctx, file, func(infos []TensorInfo) ([][]float32, error) {
		data, err := match(infos, dst)
		if err == nil && len(dst) < len(infos) {
			i := slices.IndexFunc(data, func(x []float32) bool { return x == nil })
			err = fmt.Errorf("there is a tensor %q %v, which is not wanted", infos[i].Name,
				infos[i].Shape)
		}
		return data, err
	})
}

// ReadSubset is ReadInto for some of the file's tensors. It skips the others.
func (c *Checkpoint) ReadSubset(ctx context.Context, file string, dst []Tensor) error {
	return c.read(ctx, file, func(infos []TensorInfo) ([][]float32, error) {
		return match(infos, dst)
	})
}

// ReadAll reads all tensors of a file into new memory, in file order.
func (c *Checkpoint) ReadAll(ctx context.Context, file string) ([]Tensor, error) {
	var tensors []Tensor
	err := c.read(ctx, file, func(infos []TensorInfo) (data [][]float32, err error) {
		if tensors, err = allocate(infos); err != nil {
			return nil, err
		}
		for _, t := range tensors {
			data = append(data, t.Data)
		}
		return data, nil
	})
	if err != nil {
		return nil, err
	}
	return tensors, nil
}

// Tensors lists a file's tensors in file order. It reads only the header, so the file's SHA-256 is
// not checked.
func (c *Checkpoint) Tensors(ctx context.Context, file string) ([]TensorInfo, error) {
	entry, r, err := c.open(ctx, file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	infos, _, err := (&source{r: r}).header(entry.Size)
	return infos, c.explain(entry, err)
}

// match returns the destination of each tensor in infos, or nil for a tensor that dst lacks.
func match(infos []TensorInfo, dst []Tensor) ([][]float32, error) {
	index := make(map[string]int, len(infos))
	for i, info := range infos {
		index[info.Name] = i
	}
	data := make([][]float32, len(infos))
	for _, t := range dst {
		i, ok := index[t.Name]
		switch {
		case !ok:
			return nil, fmt.Errorf("there is no tensor %q %v", t.Name, t.Shape)
		case data[i] != nil:
			panic(fmt.Sprintf("checkpoint: tensor %q is wanted twice, %d and %d elements", t.Name,
				len(data[i]), len(t.Data)))
		case !slices.Equal(infos[i].Shape, t.Shape) || infos[i].elements() != len(t.Data):
			return nil, fmt.Errorf("tensor %q has shape %v, and %v (%d elements) is wanted",
				t.Name, infos[i].Shape, t.Shape, len(t.Data))
		}
		if err := toFloats(nil, nil, infos[i].DType); err != nil {
			return nil, fmt.Errorf("tensor %q %w", t.Name, err)
		}
		data[i] = t.Data
		if data[i] == nil {
			data[i] = []float32{}
		}
	}
	return data, nil
}

// open opens a file after checking its size against the manifest.
func (c *Checkpoint) open(ctx context.Context, file string) (FileEntry, io.ReadCloser, error) {
	entry, ok := c.File(file)
	if !ok {
		return entry, nil, fmt.Errorf("checkpoint %s has no file %s", c.Path, file)
	}
	r, size, err := c.place.open(ctx, c.folder, entry.path())
	if bad := c.checkSize(entry, size, err); bad != nil {
		if err == nil {
			r.Close()
		}
		return entry, nil, bad
	}
	return entry, r, nil
}

// read reads a whole file. plan gives the destination of each tensor; nil skips it. If the file was
// altered, read reports that before any other error about its content.
func (c *Checkpoint) read(
	ctx context.Context, file string, plan func([]TensorInfo) ([][]float32, error),
) error {
	entry, r, err := c.open(ctx, file)
	if err != nil {
		return err
	}
	defer r.Close()
	hash := newDigest()
	defer hash.stop()
	s := &source{r: r, digest: hash, stopped: ctx.Err}
	content := s.tensors(entry.Size, plan)
	var storage *readError
	if errors.As(content, &storage) {
		return c.explain(entry, content)
	}
	if err := s.skip(entry.Size - s.n); err != nil {
		return c.explain(entry, err)
	}
	if sum := hash.finish(); sum != entry.SHA256 {
		return c.damaged(entry.Name, "was altered: SHA-256 %s, the manifest says %s", sum,
			entry.SHA256)
	}
	return c.explain(entry, content)
}

// explain adds the file's name to an error of a source.
func (c *Checkpoint) explain(f FileEntry, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return c.damaged(f.Name, "is truncated: it ends before its %s bytes", commas(f.Size))
	}
	if err != nil {
		return fmt.Errorf("%s in %s: %w", f.Name, c.Path, err)
	}
	return nil
}

// Verify reads all files of the checkpoint and checks them against the manifest.
func (c *Checkpoint) Verify(ctx context.Context) error {
	for _, f := range c.Files {
		err := c.read(ctx, f.Name, func(infos []TensorInfo) ([][]float32, error) {
			return make([][]float32, len(infos)), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
