// Command index measures how a corpus of many files becomes a token index: the processor time
// beside wc -w on the same files, the most memory, and how long a second start takes. It makes the
// files if their folder is missing: lines of words whose frequencies follow Zipf's law.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"rondo/corpus"
)

func main() {
	folder := flag.String("folder", "", "folder of the corpus")
	files := flag.Int("files", 1000, "number of files to make")
	bytes := flag.Int64("bytes", 10e9, "bytes of all of them together")
	unit := flag.String("tokenizer", "word", "char, word or subword")
	cache := flag.String("cache", "", "open the corpus once with this folder as the cache")
	flag.Parse()
	err := errors.New("give -folder")
	switch {
	case *cache != "":
		err = open(*folder, *cache, corpus.Unit(*unit))
	case *folder != "":
		err = measure(*folder, *unit, *files, *bytes)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
