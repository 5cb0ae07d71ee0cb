package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"rondo/corpus"
)

// words is the number of different words. A line has wordsPerLine.
const (
	words        = 200_000
	wordsPerLine = 12
	letters      = "etao" // of a word: its rank in base 4, so that frequent words are short
)

func measure(folder, unit string, files int, bytes int64) error {
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		if err := generate(folder, files, bytes); err != nil {
			return err
		}
	}
	cache, err := os.MkdirTemp("", "rondo-index-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	again := []string{self, "-folder", folder, "-cache", cache, "-tokenizer", unit}
	for _, step := range []struct {
		name    string
		command []string
	}{
		{"wc -w", []string{"sh", "-c", `find "$0" -type f -print0 | xargs -0 wc -w >/dev/null`,
			folder}},
		{"index", again},
		{"second start", again},
	} {
		c := exec.Command(step.command[0], step.command[1:]...)
		c.Stderr = os.Stderr
		begin := time.Now()
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		used := c.ProcessState
		fmt.Printf("%-12s %7.2f s, processor time %7.2f s", step.name,
			time.Since(begin).Seconds(), (used.UserTime() + used.SystemTime()).Seconds())
		if usage, ok := used.SysUsage().(*syscall.Rusage); ok && step.name != "wc -w" {
			fmt.Printf(", at most %d MB of memory", usage.Maxrss>>10)
		}
		fmt.Println()
	}
	return nil
}

// open tokenises a corpus, or finds its tokens in the cache.
func open(folder, cache string, unit corpus.Unit) error {
	c, err := corpus.Open(context.Background(), corpus.Config{Source: folder, CacheDir: cache,
		Tokenizer: corpus.Tokenizer{Unit: unit, Normalize: corpus.None}, Subwords: 8192})
	if err != nil {
		return err
	}
	first := make([]int32, min(c.Tokens().Len(), 100))
	return cmp.Or(c.Tokens().ReadTokens(first, 0), c.Close())
}

// generate makes the files.
func generate(folder string, files int, bytes int64) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for i := range files {
		path := filepath.Join(folder, fmt.Sprintf("%05d.txt", i))
		if err := write(path, uint64(i), bytes/int64(files)); err != nil {
			return err
		}
	}
	return nil
}

// write makes a file of so many bytes and the rest of a line.
func write(path string, seed uint64, bytes int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := bufio.NewWriterSize(file, 1<<20)
	zipf := rand.NewZipf(rand.New(rand.NewPCG(seed, 1)), 1.1, 4, words-1)
	var line []byte
	for bytes > 0 {
		line = line[:0]
		for range wordsPerLine {
			for n := zipf.Uint64() + 1; n > 0; n /= uint64(len(letters)) {
				line = append(line, letters[n%uint64(len(letters))])
			}
			line = append(line, ' ')
		}
		line[len(line)-1] = '\n'
		bytes -= int64(len(line))
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return cmp.Or(w.Flush(), file.Close())
}
