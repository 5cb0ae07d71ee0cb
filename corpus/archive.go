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

// seekable are the formats that are not read from start to end: sources that are named so give
// readers that are also io.ReaderAt and io.Seeker.
func seekable(source string) bool {
	return slices.Contains([]string{".zip", ".parquet"}, Extension(source))
}

// ReadZip calls read with the name and the content of the one file of an archive whose name ends
// in one of ends. Names that begin with "." or "_" do not count. A file of more than limit bytes is
// refused. packed is also io.ReaderAt and io.Seeker. Errors of read are given the name.
func ReadZip(
	packed io.Reader, ends []string, limit uint64, read func(name string, content io.Reader) error,
) error {
	at := packed.(interface {
		io.ReaderAt
		io.Seeker
	})
	size, err := at.Seek(0, io.SeekEnd)
	if err != nil {
		return err
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

// readText calls read with a text, or with the one .txt file of an archive.
func readText(source string, text io.Reader, read func(io.Reader) error) error {
	if Extension(source) != ".zip" {
		return read(text)
	}
	return ReadZip(text, []string{".txt"}, MaxUnzipped,
		func(_ string, content io.Reader) error { return read(content) })
}
