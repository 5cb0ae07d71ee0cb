package corpus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
)

// OpenParquet opens a Parquet file. The library panics on some damaged files, also later.
func OpenParquet(at io.ReaderAt, size int64) (*parquet.File, error) {
	// The library believes the length of the footer: the last 8 bytes are it and PAR1.
	var end [8]byte
	_, err := at.ReadAt(end[:], size-int64(len(end)))
	if length := int64(binary.LittleEndian.Uint32(end[:])); err != nil ||
		string(end[4:]) != "PAR1" || length > size-int64(len(end)) {
		return nil, errors.New("it is not a Parquet file, or not whole")
	}
	file, err := parquet.OpenFile(at, size, parquet.SkipPageIndex(true),
		parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, fmt.Errorf("it is not a Parquet file: %w", err)
	}
	return file, nil
}

// readParquet calls document with the text in a column of each row. An empty value is no document.
func readParquet(packed io.Reader, field string, document func(io.Reader) error) (err error) {
	at, isFile := packed.(seekable)
	if !isFile {
		file, err := scratchFile("")
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err := io.Copy(file, packed); err != nil {
			return err
		}
		at = file
	}
	size, err := at.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("it is a damaged Parquet file: %v", cause)
		}
	}()
	file, err := OpenParquet(at, size)
	if err != nil {
		return err
	}
	columns := file.Root().Columns()
	place := slices.IndexFunc(columns, func(c *parquet.Column) bool { return c.Name() == field })
	if place < 0 {
		return fmt.Errorf("it has no column %q: name the text's by --text-field", field)
	}
	column := columns[place]
	if !column.Leaf() || column.Repeated() || column.Type().Kind() != parquet.ByteArray {
		return fmt.Errorf("the column %q is not text: name another by --text-field", field)
	}
	pages := column.Pages()
	defer pages.Close()
	values, row := make([]parquet.Value, 64), 0
	for {
		page, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", row, err)
		}
		for in, n := page.Values(), 0; !errors.Is(err, io.EOF); {
			if n, err = in.ReadValues(values); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("row %d: %w", row, err)
			}
			for _, v := range values[:n] {
				if row++; v.IsNull() {
					continue
				}
				if err := document(bytes.NewReader(v.ByteArray())); err != nil {
					return fmt.Errorf("row %d: %w", row-1, err)
				}
			}
		}
		parquet.Release(page)
	}
}
