package corpus

import (
	"archive/zip"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// MaxUnzipped bounds what a small archive of text can make of itself, in bytes.
const MaxUnzipped = 4 << 30

type seekable interface {
	io.ReaderAt
	io.Seeker
}

// ReadZip calls read with the name and the content of the one file of an archive whose name ends
// in one of ends. Names that begin with "." or "_" do not count. A file of more than limit bytes is
// refused, and so is such an archive. packed need not be seekable. Errors of read get the name.
func ReadZip(
	packed io.Reader, ends []string, limit uint64, read func(name string, content io.Reader) error,
) error {
	at, isFile := packed.(seekable)
	if !isFile {
		file, err := scratchFile("")
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := io.Copy(file, io.LimitReader(packed, int64(limit)+1)); err != nil {
			return err
		}
		at = file
	}
	size, err := at.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size > int64(limit) {
		return fmt.Errorf("an archive of more than %d bytes is not unpacked: give the file itself",
			limit)
	}
	archive, err := zip.NewReader(at, size)
	if err != nil {
		return fmt.Errorf("%w: give a zip archive, or the file itself", err)
	}
	var names []string
	var found *zip.File
	for _, member := range archive.File {
		name := path.Base(member.Name)
		if !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "_") &&
			slices.Contains(ends, Extension(name)) && !member.FileInfo().IsDir() {
			names, found = append(names, member.Name), member
		}
	}
	if len(names) != 1 {
		const most = 5
		return fmt.Errorf("the archive has %d files of %s (%.60q), not one: give the file itself",
			len(names), strings.Join(ends, ", "), names[:min(most, len(names))])
	}
	if found.UncompressedSize64 > limit {
		return fmt.Errorf("%q has %d bytes, more than the %d that are unpacked from an archive: "+
			"unpack it, and give the file", found.Name, found.UncompressedSize64, limit)
	}
	// The reader fails at the first byte beyond UncompressedSize64.
	content, err := found.Open()
	if err == nil {
		defer content.Close()
		err = read(found.Name, content)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", found.Name, err)
	}
	return nil
}
