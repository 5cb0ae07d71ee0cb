package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"rondo/job/jobspec"
	"rondo/job/recipe"
)

// Every recipe is listed with its result, and shown as a file that --config takes.
func TestRecipes(t *testing.T) {
	code, list, complaint := rondo(t, "recipes")
	if code != 0 || complaint != "" {
		t.Fatalf("exit code %d, %q", code, complaint)
	}
	for _, name := range recipe.Names() {
		r, err := recipe.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := jobspec.FromRecipe(r)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(list, name+" ") || !strings.Contains(list, r.Expected) {
			t.Errorf("%s is not listed with its result:\n%s", name, list)
		}
		_, shown, _ := rondo(t, "recipes", name)
		got, err := jobspec.FromYAML(name, []byte(shown))
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s as --config: %v, %v; want %v", name, got, err, want)
		}
		if !strings.Contains(shown, "# "+r.Source+"\n") {
			t.Errorf("%s is shown without its source:\n%s", name, shown)
		}
	}
	_, shown, complaint := rondo(t, "recipes", "textbook-gru", "--measure", "--device", "cpu")
	if !strings.Contains(shown, "\n# time: ") {
		t.Errorf("no time: %s%s", shown, complaint)
	}
	for args, want := range map[string]string{
		"recipes gpt":          `rondo recipes: "gpt" is no recipe`,
		"recipes --device cpu": "rondo recipes: --device is for --measure",
		"train --recipe textbook-gr --corpus x": `rondo train: --recipe "textbook-gr": there is ` +
			"none of this name, did you mean textbook-gru?",
	} {
		code, _, complaint := rondo(t, strings.Fields(args)...)
		if code != 2 || !strings.HasPrefix(complaint, want) {
			t.Errorf("%s: exit code %d, %q", args, code, complaint)
		}
	}
}

// A corpus of another size than the published one is named before the training.
func TestRecipeOfAnotherCorpus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text.txt")
	text := strings.Repeat("the time traveller for so it will be convenient to speak of him ", 40)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The run ends at --audit-dir, which is below a file.
	_, _, complaint := rondo(t, "train", "--recipe", "textbook-gru", "--corpus", path,
		"--checkpoint-dir", "none", "--audit-dir", filepath.Join(path, "logs"))
	if !strings.Contains(complaint, "recipe textbook-gru: the corpus has 2559 tokens to train on "+
		"instead of 10000") {
		t.Error(complaint)
	}
}
