// Package recipe has jobs of the literature with their published results, each a committed YAML
// file. It reads the files and compares a corpus with a recipe's. It runs nothing, does not know
// what a job's keys mean, and imports nothing of ours.
package recipe

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed recipes/*.yaml
var files embed.FS

// Recipe is a job whose result is published.
type Recipe struct {
	Name string `json:"-"` // the file's, without .yaml
	// Source is the authors, year, title and place of the publication, and Row the table and row of
	// the result.
	Source string `json:"source"`
	Row    string `json:"row"`
	// Expected is the published result.
	Expected string `json:"expected"`
	Corpus   Corpus `json:"corpus"`
	// Differs says where the job is not the published one.
	Differs []string `json:"differs"`
	// Job is the job's keys, as in the file of --config; JSON, which is YAML.
	Job json.RawMessage `json:"job"`
}

// Corpus is the data of a recipe. The user has them.
type Corpus struct {
	Files string `json:"files"` // names, and flags that take them
	// Tokens to train and to evaluate on, and different tokens; 0: not checked.
	Training   int64 `json:"training"`
	Validation int64 `json:"validation"`
	Vocabulary int64 `json:"vocabulary"`
}

// Names returns all recipes' names, sorted.
func Names() (names []string) {
	entries, err := files.ReadDir("recipes")
	if err != nil {
		panic(fmt.Sprintf("recipe: the embedded folder: %v", err))
	}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), path.Ext(e.Name())))
	}
	return names
}

// Find returns the recipe of a name; nil: there is none.
func Find(name string) (*Recipe, error) {
	text, err := files.ReadFile("recipes/" + name + ".yaml")
	if err != nil {
		return nil, nil // a name that is no file's
	}
	r := &Recipe{Name: name}
	if err := yaml.UnmarshalStrict(text, r); err != nil {
		return nil, fmt.Errorf("recipe %s: %w", name, err)
	}
	return r, nil
}

// Check compares the numbers of tokens to train and to evaluate on, and of different tokens, with
// the recipe's. It returns a line if some differ; empty: none does. No validation tokens are no
// difference.
func (r *Recipe) Check(training, validation, vocabulary int64) string {
	var differ []string
	for _, n := range []struct {
		name      string
		got, want int64
	}{
		{"tokens to train on", training, r.Corpus.Training},
		{"tokens to evaluate on", validation, r.Corpus.Validation},
		{"different tokens", vocabulary, r.Corpus.Vocabulary},
	} {
		if n.want == 0 || n.got == n.want || n.name == "tokens to evaluate on" && n.got == 0 {
			continue
		}
		differ = append(differ, fmt.Sprintf("%d %s instead of %d", n.got, n.name, n.want))
	}
	if len(differ) == 0 {
		return ""
	}
	return fmt.Sprintf("recipe %s: the corpus has %s, so another result is to be expected; it "+
		"wants %s", r.Name, strings.Join(differ, ", "), r.Corpus.Files)
}
