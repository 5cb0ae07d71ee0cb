package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Limits of an archive: 16 MiB before it is compressed.
const (
	archiveBytes = 16 << 20
	archiveFiles = 40
	// keptBytes of a longer file's beginning, and of its end, are kept.
	keptBytes = archiveBytes / archiveFiles / 2
)

// archive writes the files of a folder, not of those in it, as a tar under another name, which it
// then gives the archive: an earlier one stays until the new one is whole.
func archive(folder, to string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	making, err := os.CreateTemp(filepath.Dir(to), "making-")
	if err != nil {
		return err
	}
	defer os.Remove(making.Name())
	defer making.Close()
	packed := gzip.NewWriter(making)
	writer, files := tar.NewWriter(packed), 0
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if files++; files > archiveFiles {
			return fmt.Errorf("%s has more than %d files", folder, archiveFiles)
		}
		if err := add(writer, filepath.Join(folder, e.Name())); err != nil {
			return err
		}
	}
	err = errors.Join(writer.Close(), packed.Close(), making.Close())
	if err != nil {
		return err
	}
	return os.Rename(making.Name(), to)
}

// add adds a file, of a long one its beginning and its end.
func add(writer *tar.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	const gap = "\n[...]\n"
	header := &tar.Header{Name: info.Name(), Mode: 0o644, ModTime: info.ModTime(),
		Size: min(info.Size(), 2*keptBytes)}
	content := io.Reader(io.NewSectionReader(file, 0, header.Size))
	if info.Size() > header.Size {
		tail := int64(keptBytes - len(gap))
		content = io.MultiReader(io.NewSectionReader(file, 0, keptBytes), strings.NewReader(gap),
			io.NewSectionReader(file, info.Size()-tail, tail))
	}
	if err := writer.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(writer, content)
	return err
}
