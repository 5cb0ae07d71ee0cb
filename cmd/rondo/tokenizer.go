package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rondo/corpus"
	"rondo/corpus/subword"
	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
)

// maxLine is the longest line that rondo tokenizer encode and decode read.
const maxLine = 64 << 20

func tokenizerCommand() *cobra.Command {
	c := &cobra.Command{Use: "tokenizer",
		Short: "Make and use a tokenizer.json, whose tokens are subwords"}
	c.AddCommand(tokenizerTrainCommand(), tokenizerShowCommand(), tokenizerEncodeCommand(),
		tokenizerDecodeCommand())
	return c
}

func tokenizerTrainCommand() *cobra.Command {
	var output string
	spec := jobspec.Default()
	spec.Tokenizer = "bpe"
	c := &cobra.Command{
		Use:   "train",
		Short: "Learn a byte-level byte-pair encoding from a text",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := jobspec.Validate(spec); err != nil {
				return err
			}
			t, err := job.TrainTokenizer(cmd.Context(), spec)
			if err != nil {
				return err
			}
			if err := os.WriteFile(output, append(t.JSON(), '\n'), 0o644); err != nil {
				return fmt.Errorf("--output: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tokens, %d merges\n", output, t.Len(),
				t.Describe().Merges)
			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&spec.Corpus, "corpus", spec.Corpus, "texts: paths, folders, patterns, blob "+
		"URLs, or "+corpus.Opticks)
	flags.StringVar(&output, "output", "tokenizer.json", "file to write")
	flags.Int64Var(&spec.VocabularySize, "vocabulary-size", spec.VocabularySize,
		"tokens, the 256 bytes among them; a short text gives fewer")
	flags.Int64Var(&spec.MinFrequency, "min-frequency", 0,
		"how often the parts of a new token must occur together; at least 2")
	flags.StringVar(&spec.Normalize, "normalize", spec.Normalize, "none|letters|punctuation: the "+
		"text is changed before; the tokenizer does not know of it")
	flags.StringVar(&spec.Eos, "eos", spec.Eos,
		"line|document: have a token <eos>, for a job with this --eos")
	flags.StringVar(&spec.TextField, "text-field", spec.TextField,
		"field of a .jsonl's objects that holds the text")
	return c
}

func tokenizerShowCommand() *cobra.Command {
	var asJSON, whole bool
	c := &cobra.Command{
		Use:   "show FILE.json|CHECKPOINT",
		Short: "Describe a tokenizer.json, or that of a checkpoint",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := job.OpenTokenizer(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if whole {
				_, err = fmt.Fprintf(out, "%s\n", t.JSON())
				return err
			}
			d := t.Describe()
			if asJSON {
				return json.NewEncoder(out).Encode(d)
			}
			_, err = fmt.Fprintf(out, "%s, %d tokens, %d merges\nnormalizers     %s\n"+
				"pre-tokenizers  %s\ndecoders        %s\nadded tokens    %s\n", d.Model, d.Tokens,
				d.Merges, named(d.Normalizers), named(d.PreTokenizers), named(d.Decoders),
				named(escaped(d.Added)))
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&whole, "whole", false, "print the tokenizer.json itself")
	return c
}

// escaped makes tokens safe to print.
func escaped(tokens []string) []string {
	all := make([]string, len(tokens))
	for i, token := range tokens {
		all[i] = strconv.Quote(token)
	}
	return all
}

func named(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	const most = 20
	if n := len(names) - most; n > 0 {
		names = append(names[:most:most], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// encoding is a line of rondo tokenizer encode --json.
type encoding struct {
	IDs    []int32  `json:"ids"`
	Tokens []string `json:"tokens"`
}

// encodingSpeed is what rondo tokenizer encode --count prints.
type encodingSpeed struct {
	Lines   int64   `json:"lines"`
	Bytes   int64   `json:"bytes"`
	Tokens  int64   `json:"tokens"`
	Seconds float64 `json:"seconds"` // of encoding alone, on one core
}

func tokenizerEncodeCommand() *cobra.Command {
	var location string
	var asJSON, count bool
	c := &cobra.Command{
		Use:   "encode",
		Short: "Print the ids of each line of standard input",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := job.OpenTokenizer(cmd.Context(), location)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			encoder, speed, objects := t.NewEncoder(), encodingSpeed{}, json.NewEncoder(out)
			err = eachLine(cmd.InOrStdin(), func(line []byte) error {
				begin := time.Now()
				ids, err := encoder.Encode(line, true, true)
				speed.Seconds += time.Since(begin).Seconds()
				if err != nil {
					return err
				}
				speed.Lines++
				speed.Bytes += int64(len(line))
				speed.Tokens += int64(len(ids))
				switch {
				case count:
					return nil
				case asJSON:
					return objects.Encode(encodingOf(t, ids))
				}
				return writeIDs(out, ids)
			})
			if err == nil && count {
				err = objects.Encode(speed)
			}
			return errors.Join(err, out.Flush())
		},
	}
	flags := c.Flags()
	flags.StringVar(&location, "tokenizer", "", "tokenizer.json, or a checkpoint")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object per line, with the tokens")
	flags.BoolVar(&count, "count", false, "print only how many lines, bytes and tokens there are, "+
		"and how long they took on one core")
	c.MarkFlagsMutuallyExclusive("json", "count")
	app.Require(c, "tokenizer")
	return c
}

func encodingOf(t *subword.Tokenizer, ids []int32) encoding {
	e := encoding{IDs: append([]int32{}, ids...), Tokens: []string{}}
	for _, id := range ids {
		e.Tokens = append(e.Tokens, t.Token(id))
	}
	return e
}

func writeIDs(out *bufio.Writer, ids []int32) error {
	var line []byte
	for i, id := range ids {
		if i > 0 {
			line = append(line, ' ')
		}
		line = strconv.AppendInt(line, int64(id), 10)
	}
	_, err := out.Write(append(line, '\n'))
	return err
}

func tokenizerDecodeCommand() *cobra.Command {
	var location string
	c := &cobra.Command{
		Use:   "decode",
		Short: "Print the text of the ids in each line of standard input",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := job.OpenTokenizer(cmd.Context(), location)
			if err != nil {
				return err
			}
			return eachLine(cmd.InOrStdin(), func(line []byte) error {
				var ids []int32
				for _, word := range strings.Fields(string(line)) {
					id, err := strconv.ParseInt(word, 10, 32)
					if err != nil || id < 0 || int(id) >= t.Len() {
						return fmt.Errorf("%.40q is no id: give numbers from 0 to %d", word,
							t.Len()-1)
					}
					ids = append(ids, int32(id))
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), t.Decode(ids))
				return err
			})
		},
	}
	c.Flags().StringVar(&location, "tokenizer", "", "tokenizer.json, or a checkpoint")
	app.Require(c, "tokenizer")
	return c
}

// eachLine calls use with each line of a text, without its end.
func eachLine(text io.Reader, use func(line []byte) error) error {
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for number := 1; lines.Scan(); number++ {
		if err := use(lines.Bytes()); err != nil {
			return app.Usage(fmt.Errorf("line %d: %w", number, err))
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return app.Usagef("a line is longer than %d MiB", maxLine>>20)
	}
	return lines.Err()
}
