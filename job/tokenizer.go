package job

import (
	"context"
	"fmt"

	"rondo/checkpoint"
	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/corpus/subword"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// OpenTokenizer reads a tokenizer.json, or that of a checkpoint: its own folder, or a folder of
// checkpoints, of which it takes the newest.
func OpenTokenizer(ctx context.Context, location string) (*subword.Tokenizer, error) {
	if file := jobspec.TokenizerFile(&rondov1.JobSpec{Tokenizer: location}); file != "" {
		t, err := corpus.ReadSubwords(ctx, corpus.Config{SubwordFile: file,
			OpenBucket: bucket.Open})
		if err != nil && ctx.Err() == nil && !transient(err) {
			return nil, app.Usage(err)
		}
		return t, err
	}
	store, c, err := checkpoint.Resolve(ctx, location, checkpoint.Config{OpenBucket: bucket.Open})
	if err != nil {
		return nil, app.Usage(fmt.Errorf("%s is no tokenizer.json: %w", location, err))
	}
	defer func() { _ = store.Close() }()
	if len(c.Tokenizer) == 0 {
		return nil, app.Usagef("checkpoint %s has no tokenizer.json: its tokens are characters "+
			"or words, which rondo checkpoint show counts", c.Path)
	}
	t, err := subword.Read(c.Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("manifest.json in %s: tokenizer: %w", c.Path, err)
	}
	return t, nil
}

// TrainTokenizer learns a byte-level tokenizer of --vocabulary-size tokens from --corpus.
func TrainTokenizer(ctx context.Context, spec *rondov1.JobSpec) (*subword.Tokenizer, error) {
	t, err := corpus.TrainSubwords(ctx, corpusConfig(spec, spec.Corpus))
	if err != nil && ctx.Err() == nil && !transient(err) {
		return nil, app.Usage(err)
	}
	return t, err
}
