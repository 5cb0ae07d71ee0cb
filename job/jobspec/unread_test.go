package jobspec

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestUnreadFlags: a flag that the job would ignore is refused, also with its default.
func TestUnreadFlags(t *testing.T) {
	checkWrongFlags(t, []wrongFlag{
		{"--vocabulary-size 500", "--vocabulary-size is for --tokenizer bpe, and that is char: " +
			"leave it out"},
		{"--tokenizer t.json --min-frequency 2", "--min-frequency is for --tokenizer char, word " +
			"or bpe, and that is t.json"},
		{"--momentum 0.5", "--momentum is for --optimizer momentum or nesterov, and that is adam"},
		{"--optimizer sgd --beta1 0.9", "--beta1 is for --optimizer adam or adamw"},
		{"--optimizer sgd --beta2 0.9", "--beta2 is for --optimizer adam or adamw"},
		{"--rho 0.9", "--rho is for --optimizer rmsprop"},
		{"--optimizer nesterov --epsilon 1e-6", "--epsilon is for --optimizer adam or adamw or"},
		{"--lr-decay 0.1", "--lr-decay is for --lr-schedule step or plateau, and that is cosine"},
		{"--lr-step-every 5", "--lr-step-every is for --lr-schedule step"},
		{"--lr-hold 5 --lr-schedule plateau", "--lr-hold is for --lr-schedule step"},
		{"--lr-patience 5", "--lr-patience is for --lr-schedule plateau"},
		{"--sample-tokens 0 --sample-every 5", "--sample-every is for --sample-tokens above 0"},
		{"--outer-lr 0.5", "--outer-lr is for --sync-every above 1: leave it out"},
		{"--sync-every 2 --outer-optimizer average --outer-lr 0.5", "--outer-lr is for " +
			"--outer-optimizer sgd or nesterov, and that is average"},
		{"--sync-every 2 --outer-optimizer sgd --outer-momentum 0.5", "--outer-momentum is for " +
			"--outer-optimizer nesterov"},
	})
	for _, args := range []string{
		"--tokenizer bpe --vocabulary-size 500", "--optimizer nesterov --momentum 0.5",
		"--optimizer adagrad --epsilon 1e-6", "--lr-schedule plateau --lr-decay 0.1",
		"--sync-every 2 --outer-optimizer sgd --outer-lr 0.5",
	} {
		if _, err := parse(t, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestOverriddenKeys: a flag may make a key of the YAML file or of the recipe one that the job does
// not read. The command that repeats the job leaves it out.
func TestOverriddenKeys(t *testing.T) {
	config := writeYAML(t, "optimizer: momentum\nmomentum: 0.5\n")
	spec, err := parse(t, "--config", config, "--optimizer", "sgd")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(t, Arguments(spec)...); err != nil {
		t.Errorf("%q: %v", Arguments(spec), err)
	}
	if err := parseRecipe(t, "zaremba-2014-small", "--lr-schedule", "cosine"); err != nil {
		t.Error(err)
	}
}

// parseRecipe parses flags beside --recipe.
func parseRecipe(t *testing.T, name string, args ...string) error {
	t.Helper()
	set := pflag.NewFlagSet("train", pflag.ContinueOnError)
	flags := AddFlags(set)
	flags.AddRecipe()
	if err := set.Parse(append([]string{"--recipe", name}, args...)); err != nil {
		t.Fatal(err)
	}
	_, err := flags.Spec()
	return err
}

// TestRecipeOfAnotherTask: the error names the recipe, not the keys that the task does not read.
func TestRecipeOfAnotherTask(t *testing.T) {
	err := parseRecipe(t, "textbook-gru", "--task", "classify")
	want := "--task classify: recipe textbook-gru is for --task lm: leave out one of the two"
	if err == nil || err.Error() != want {
		t.Errorf("%v; want %q", err, want)
	}
}
