package jobspec

import (
	"strings"
	"testing"
)

func TestRegulariserFlags(t *testing.T) {
	checkWrongFlags(t, []wrongFlag{
		{"--dropout-words 0.1", "--dropout-words drops rows of the embedding: set --embed"},
		{"--dropout-output -0.5", "--dropout-output -0.5 is no probability"},
		{"--layers 1 --dropout 0.2 --dropout-output 0.3", "--dropout 0.2 is for layers below"},
		{"--weight-drop 0.5 --cell min-gru", "--weight-drop drops recurrent weights, and --cell"},
		{"--weight-drop 1", "--weight-drop 1 is above its greatest value"},
		{"--task translate --corpus a.tsv --weight-drop 0.5", "--weight-drop is for --task lm"},
		{"--task tag --corpus a.conll --temporal-l2 1", "--temporal-l2 is for --task lm"},
		{"--temporal-l2 1 --recompute 5", "--temporal-l2 reads the outputs of a whole segment"},
		{"--temporal-l2 1 --bptt 1", "--temporal-l2 reads the outputs of a whole segment"},
		{"--activation-l2 1 --bidirectional --i-know", "--activation-l2 and --temporal-l2 go"},
		{"--average asgd", "--average \"asgd\" is not none, polyak[:STEP], ema[:DECAY] or nt"},
		{"--average nt:17", "--average nt:17: nt: takes a number of evaluations from 1 to 16"},
		{"--average nt:x", "--average nt:x: nt: takes a number"},
		{"--average ema:1", "--average ema:1: ema: takes a decay"},
		{"--average ema:0.99999999", "--average ema:0.99999999: ema: takes a decay of"},
		{"--average polyak:-1", "--average polyak:-1: polyak: takes a step"},
		{"--average nt --validation-fraction 0", "--average nt waits until the validation loss"},
		{"--average ema --shard-optimizer", "--average needs all parameters on each worker"},
		{"--average ema --sync-every 4", "--average needs all parameters on each worker"},
		{"--task ngram --average ema", "--average is for --task"},
	})
	for _, args := range []string{"--average polyak:100", "--average nt --optimizer sgd",
		"--embed 8 --dropout-words 0.1 --weight-drop 0.5 --activation-l2 2 --temporal-l2 1",
		"--dropout 0 --dropout-output 0.4 --dropout-locked", "--layers 1 --dropout-output 0.4",
		"--layers 2 --dropout 0.2 --dropout-output 0.4"} {
		if _, err := parse(t, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestParseAverage(t *testing.T) {
	for text, want := range map[string]Average{"none": {}, "polyak": {Kind: "polyak"},
		"polyak:7": {Kind: "polyak", From: 7}, "ema": {Kind: "ema", Decay: 0.999},
		"ema:0.5": {Kind: "ema", Decay: 0.5}, "nt": {Kind: "nt", Patience: 5},
		"nt:2": {Kind: "nt", Patience: 2}} {
		if got, err := ParseAverage(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// TestAverageIdentity keeps the identity of jobs of before.
func TestAverageIdentity(t *testing.T) {
	spec, averaged := Default(), Default()
	averaged.Average = "ema"
	if Identity(spec, "x") == Identity(averaged, "x") {
		t.Error("a job with an average has checkpoints that others lack")
	}
	dropped := Default()
	dropped.WeightDrop, dropped.Embed = 0.5, spec.Embed
	if Identity(dropped, "x") != Identity(spec, "x") {
		t.Error("--weight-drop makes another job")
	}
}
