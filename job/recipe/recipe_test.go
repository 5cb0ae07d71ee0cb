package recipe_test

import (
	"slices"
	"testing"

	"rondo/job/jobspec"
	"rondo/job/recipe"
	rondov1 "rondo/proto/rondo/v1"
)

// TestRecipes checks that each file is a whole recipe, whose job is valid with an evaluation text.
func TestRecipes(t *testing.T) {
	jobs := map[string]*rondov1.JobSpec{}
	for _, name := range recipe.Names() {
		r, err := recipe.Find(name)
		if err != nil || r == nil {
			t.Fatalf("%s: %v, %v", name, r, err)
		}
		if r.Source == "" || r.Row == "" || r.Expected == "" || r.Corpus.Files == "" ||
			r.Corpus.Training == 0 {
			t.Errorf("%s lacks a part: %+v", name, r)
		}
		spec, err := jobspec.FromRecipe(r)
		if err != nil {
			t.Fatal(err)
		}
		spec.EvalCorpus = "valid.txt"
		if err := jobspec.Validate(spec); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		jobs[name] = spec
	}
	small := jobs["zaremba-2014-small"]
	if small == nil || small.Hidden != 200 || small.LrHold != 4 || small.ValidationFraction != 0 ||
		small.Epochs != 13 || small.Clip != 5.0/20 {
		t.Errorf("zaremba-2014-small: %v", small)
	}
}

func TestCheck(t *testing.T) {
	r := &recipe.Recipe{Name: "known", Corpus: recipe.Corpus{Files: "a.txt", Training: 100,
		Validation: 10, Vocabulary: 7}}
	for _, c := range []struct {
		training, validation, vocabulary int64
		want                             string // between the recipe's name and the files
	}{
		{100, 10, 7, ""},
		{100, 0, 7, ""}, // nothing to evaluate on
		{99, 10, 7, "99 tokens to train on instead of 100"},
		{100, 11, 8, "11 tokens to evaluate on instead of 10, 8 different tokens instead of 7"},
	} {
		want := c.want
		if want != "" {
			want = "recipe known: the corpus has " + want + ", so another result is to be " +
				"expected; it wants a.txt"
		}
		if got := r.Check(c.training, c.validation, c.vocabulary); got != want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if r, err := recipe.Find("../recipe"); r != nil || err != nil {
		t.Errorf("a path is no name: %v, %v", r, err)
	}
	if !slices.IsSorted(recipe.Names()) {
		t.Error("the names are not sorted")
	}
}
