// Package corpus turns text into tokens and tokens into the lanes that training reads.
//
// Open reads a text (the embedded one, files, folders, or objects in blob storage; plain, .gz or
// .zst, as a whole or as documents in the lines of a .jsonl or the rows of a .parquet), splits it
// into characters, words or subwords, and builds a vocabulary or takes the given one. It writes the
// token ids once, to a file in a cache folder; all later reads are ranges of that file. Neither the
// text nor its tokens are held in memory, so a corpus may be larger than memory. A Sampler says
// which tokens each lane reads at each step; it is a pure function. A Reader fetches them in
// time-major order. An Evaluation covers a range of tokens exactly once. Measure counts n-grams and
// fits Zipf's law.
//
// The package knows nothing of models, workers or storage credentials. A caller that wants blob
// URLs passes a function that opens buckets. It imports internal/flock, corpus/location,
// corpus/subword and, outside of this module, gocloud.dev/blob, klauspost/compress/zstd,
// parquet-go and golang.org/x/sync/errgroup.
package corpus

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"gocloud.dev/blob"
)

// Config selects a text and its tokenization.
type Config struct {
	// Source is builtin:opticks, the path of a file, or the URL of an object (s3://bucket/key). For
	// Open it may also be a folder (of a bucket: with / at its end), a pattern (texts/*.txt), or
	// several of these, separated by commas; a .zip has one .txt or .jsonl. #train, #valid or #test
	// at the end of a folder or a pattern is its files with that word in their names.
	Source    string
	Tokenizer Tokenizer
	// TextField is the field of a .jsonl's objects, or the column of a .parquet, that holds the
	// text; empty: DefaultField. Only Open reads it.
	TextField string
	// ShuffleDocuments puts the documents in an order that Seed draws. Only Open reads it.
	ShuffleDocuments bool
	Seed             uint64
	// MinFrequency: rarer tokens become <unk>. It is ignored when Vocabulary is given.
	MinFrequency int64
	// Reserved tokens follow <unk>, and EndOfText if it is inserted, in a new vocabulary, in this
	// order. They are ignored when Vocabulary is given.
	Reserved []string
	// MaxTokens keeps only the first tokens, of shuffled documents too; 0 keeps all. The vocabulary
	// is still built from the whole text.
	MaxTokens int64
	// SubwordFile is the tokenizer.json of a Subword tokenizer: a path or the URL of an object.
	// Empty: one of Subwords tokens is trained on the text. Both are ignored when Vocabulary is
	// given.
	SubwordFile string
	Subwords    int
	// Vocabulary is the vocabulary of an earlier run: of the resumed job or the evaluated model.
	// Nil builds a new one.
	Vocabulary *Vocabulary
	// CacheDir holds the token files; empty means rondo/corpus in the user's cache folder.
	CacheDir string
	// OpenBucket opens the bucket of a blob URL (without the object's key). Nil refuses URLs,
	// except file://. The corpus closes the bucket.
	OpenBucket func(ctx context.Context, url string) (*blob.Bucket, error)
}

func (c Config) validate() error {
	if err := c.Tokenizer.validate(); err != nil {
		return err
	}
	if c.MinFrequency < 0 {
		return fmt.Errorf("--min-frequency %d is negative", c.MinFrequency)
	}
	if c.Vocabulary != nil && (c.Vocabulary.subwords != nil) != (c.Tokenizer.Unit == Subword) {
		return errors.New("--tokenizer: the vocabulary has other tokens")
	}
	if c.MaxTokens < 0 {
		return fmt.Errorf("--max-tokens %d is negative", c.MaxTokens)
	}
	if _, err := NewVocabulary(slices.Concat([]string{Unknown}, c.Reserved)); err != nil {
		return fmt.Errorf("reserved tokens: %w", err)
	}
	return nil
}

// Corpus is a tokenised text. Its methods may be called concurrently.
type Corpus struct {
	file      *TokenFile
	files     Files
	tokens    Tokens
	tokenizer Tokenizer
	order     string // of documents, for the fingerprint; empty: that of the text
	fields    bool   // see HasFields
}

// Open tokenises the source, or finds its token file in the cache. One process per host tokenises;
// others that start at the same time wait for it until ctx ends. A token file is known by the
// content of the text, wherever it lies. Open rebuilds a damaged one; the ids of a large one are
// verified when they are read.
func Open(ctx context.Context, cfg Config) (*Corpus, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	field := cmp.Or(cfg.TextField, DefaultField)
	src, err := openTexts(ctx, cfg.Source, field, cfg.OpenBucket)
	if err != nil {
		return nil, err
	}
	defer src.close()
	if cfg.SubwordFile != "" && cfg.Vocabulary == nil {
		read, err := ReadSubwords(ctx, cfg)
		if err != nil {
			return nil, err
		}
		cfg.Vocabulary = OfSubwords(read)
	}
	if cfg.Vocabulary != nil && cfg.Vocabulary.subwords != nil {
		if err := cfg.Tokenizer.needsEnd(cfg.Vocabulary.subwords); err != nil {
			return nil, err
		}
	}
	store, err := openCache(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	files, err := src.files(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("corpus %s: %w", cfg.Source, err)
	}
	id := identify(files.content(), cfg)
	if src.hasFields() {
		id.TextField = field
	}
	if cfg.Tokenizer.marksEnds() {
		id.Ends = cfg.Tokenizer.Ends
	}
	file, err := store.tokens(ctx, id.key(), func(dst io.WriteSeeker) error {
		return buildTokens(ctx, src, store.dir, cfg, func(h Header) (*TokenWriter, error) {
			return newTokenWriter(dst, id, h)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("corpus %s: %w", cfg.Source, err)
	}
	c := &Corpus{file: file, files: files, tokens: file, tokenizer: cfg.Tokenizer,
		fields: src.hasFields()}
	if cfg.ShuffleDocuments {
		if c.tokens, err = shuffle(file, cfg.Seed); err != nil {
			file.Close()
			return nil, fmt.Errorf("corpus %s: --shuffle-documents: %w", cfg.Source, err)
		}
		c.order = fmt.Sprintf("documents shuffled by %d\n", cfg.Seed)
	}
	if cfg.MaxTokens > 0 {
		c.tokens = Slice(c.tokens, 0, min(file.count, cfg.MaxTokens))
	}
	return c, nil
}

// OpenTokens finds the token file of a source in the cache, or has build write it. It is for
// packages whose files hold more than one row of tokens. more, as JSON, is what such a file depends
// on beside the config; Config.MaxTokens is ignored.
func OpenTokens(
	ctx context.Context, cfg Config, more any, build func(b *TokenBuild) error,
) (*TokenFile, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	src, err := openSource(ctx, cfg.Source, cfg.OpenBucket)
	if err != nil {
		return nil, err
	}
	defer src.close()
	id := identify(src.identity(), cfg)
	id.More = more
	store, err := openCache(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	file, err := store.tokens(ctx, id.key(), func(dst io.WriteSeeker) error {
		return build(&TokenBuild{Scratch: store.dir, src: src, id: id, dst: dst})
	})
	if err != nil {
		return nil, fmt.Errorf("corpus %s: %w", cfg.Source, err)
	}
	return file, nil
}

// TokenBuild makes a token file from its source.
type TokenBuild struct {
	Scratch string // a folder for temporary files
	src     source
	id      identity
	dst     io.WriteSeeker
}

// Read calls each function in turn with the source's content from its start. If there are at least
// two, their readers are also io.ReaderAt and io.Seeker.
func (b *TokenBuild) Read(ctx context.Context, passes ...func(io.Reader) error) error {
	return b.src.passes(ctx, b.Scratch, passes)
}

// Writer starts the file. The header must be final.
func (b *TokenBuild) Writer(h Header) (*TokenWriter, error) {
	return newTokenWriter(b.dst, b.id, h)
}

// Vocabulary returns the corpus's vocabulary.
func (c *Corpus) Vocabulary() *Vocabulary { return c.file.head.Vocabulary }

// Tokens returns the ids of the text, limited to Config.MaxTokens.
func (c *Corpus) Tokens() Tokens { return c.tokens }

// Files are the files of the text.
func (c *Corpus) Files() Files { return c.files }

// HasFields reports whether files of the text may have Config.TextField, by their names.
func (c *Corpus) HasFields() bool { return c.fields }

// Fingerprint is a SHA-256, in hexadecimal, of the tokenizer, the vocabulary and the token ids. It
// is equal on two machines exactly when they train on the same tokens.
func (c *Corpus) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "rondo corpus 1\n%s\n%s\n%s\n%x\n%d\n", c.tokenizer.Unit, c.tokenizer.Normalize,
		c.Vocabulary().Fingerprint(), c.file.digest, c.tokens.Len())
	if c.tokenizer.marksEnds() {
		fmt.Fprintf(h, "%s\n", c.tokenizer.Ends)
	}
	fmt.Fprint(h, c.order)
	return hex.EncodeToString(h.Sum(nil))
}

// Close releases the token file.
func (c *Corpus) Close() error { return c.file.Close() }

// identity is everything that a token file depends on. Its hash is the file's name in the cache.
type identity struct {
	Format       int           `json:"format"`
	Source       string        `json:"source"`
	Unit         Unit          `json:"unit"`
	Normalize    Normalization `json:"normalize"`
	MinFrequency int64         `json:"min_frequency"`
	Reserved     []string      `json:"reserved"`
	Vocabulary   string        `json:"vocabulary"` // fingerprint of Config.Vocabulary, or empty
	TextField    string        `json:"text_field,omitempty"`
	Ends         Ends          `json:"ends,omitempty"`
	Subwords     int           `json:"subwords,omitempty"`
	More         any           `json:"more,omitempty"`
}

func identify(source string, cfg Config) identity {
	id := identity{
		Format:    tokenFileVersion,
		Source:    source,
		Unit:      cfg.Tokenizer.Unit,
		Normalize: cfg.Tokenizer.Normalize,
	}
	if cfg.Vocabulary != nil {
		id.Vocabulary = cfg.Vocabulary.Fingerprint()
		return id
	}
	id.MinFrequency = max(cfg.MinFrequency, 1) // 0 and 1 give the same vocabulary
	id.Reserved = cfg.Reserved
	if cfg.Tokenizer.Unit == Subword {
		id.Subwords = cfg.Subwords
	}
	return id
}

func (id identity) key() string {
	text, err := json.Marshal(id)
	if err != nil {
		panic(fmt.Sprintf("corpus: identity %+v cannot be encoded: %v", id, err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// buildTokens writes the token file. Unless the vocabulary is given, words are counted in the pass
// over the text that splits it, and other tokens in a pass of their own.
func buildTokens(
	ctx context.Context, src *texts, scratch string, cfg Config,
	begin func(Header) (*TokenWriter, error),
) error {
	vocabulary := cfg.Vocabulary
	write := func(put func(w *TokenWriter) error) error {
		w, err := begin(Header{Vocabulary: vocabulary})
		if err != nil {
			return err
		}
		if err := put(w); err != nil {
			return err
		}
		if w.count == 0 {
			return fmt.Errorf("it is empty: no token in it (--tokenizer %s, --normalize %s)",
				cfg.Tokenizer.Unit, cfg.Tokenizer.Normalize)
		}
		return w.Finish()
	}
	var passes []func(reading) error
	switch {
	case vocabulary == nil && cfg.Tokenizer.Unit == Word:
		return src.passes(ctx, scratch, []func(reading) error{func(read reading) error {
			d, err := newDraft(scratch, lexiconBytes)
			if err != nil {
				return err
			}
			defer d.close()
			if err = d.read(ctx, cfg.Tokenizer, read); err != nil {
				return err
			}
			vocabulary, err = d.vocabulary(cfg.MinFrequency, cfg.reserved())
			if err != nil {
				return err
			}
			d.forget()
			return write(func(w *TokenWriter) error { return d.write(ctx, w) })
		}})
	case vocabulary == nil:
		passes = append(passes, func(read reading) (err error) {
			vocabulary, err = countVocabulary(ctx, read, cfg, scratch)
			return err
		})
	}
	passes = append(passes, func(read reading) error {
		return write(func(w *TokenWriter) error { return w.putTexts(ctx, cfg.Tokenizer, read) })
	})
	return src.passes(ctx, scratch, passes)
}

// encoded is the tokens of a block.
type encoded struct {
	ids  []byte // as the token file has them
	ends []int  // how many of them precede each end of a document
}

// putTexts appends the tokens of texts, and the ends of their documents.
func (w *TokenWriter) putTexts(ctx context.Context, t Tokenizer, read reading) error {
	packed := make(memory, 4*processors())
	start := func() func(block) (encoded, error) {
		encode := w.vocabulary.encoder(ctx, t.Unit)
		var ids []int32
		return func(b block) (e encoded, err error) {
			ids, e.ends, err = b.encode(ids[:0], encode)
			e.ids = pack(packed.get(), w.width, ids)
			return e, err
		}
	}
	return scanTexts(ctx, t, read, start, func(e encoded) error {
		w.ends.add(w.count, e.ends)
		defer packed.put(e.ids)
		return w.putPacked(e.ids)
	})
}
