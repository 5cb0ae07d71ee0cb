package tidy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The limits on text.
const (
	maxColumns   = 100
	tabColumns   = 4
	maxFileLines = 500
	maxTestLines = 800
	maxMainLines = 60
)

// columns is the width of a line.
func columns(line string) int {
	return utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabColumns-1)
}

// unbreakable matches lines that may be longer: links and struct tags.
func unbreakable(line string) bool {
	return strings.Contains(line, "://") || strings.Contains(line, `:"`) && strings.Contains(line, "`")
}

// sizeProblems lists lines that are too long, and the file if it is.
func sizeProblems(f source) []string {
	var problems []string
	for i, line := range f.lines() {
		if n := columns(line); n > maxColumns && !unbreakable(line) {
			problems = append(problems, fmt.Sprintf("%s:%d: %d columns; at most %d",
				f.path, i+1, n, maxColumns))
		}
	}
	limit := maxFileLines
	switch {
	case f.isTest():
		limit = maxTestLines
	case path.Base(f.path) == "main.go":
		limit = maxMainLines
	}
	if n := len(f.lines()); n > limit {
		problems = append(problems, fmt.Sprintf("%s: %d lines; at most %d", f.path, n, limit))
	}
	return problems
}

func TestSizes(t *testing.T) {
	for _, f := range tree(t) {
		if !f.isCode() || path.Ext(f.path) == ".go" && parse(t, f).generated {
			continue
		}
		for _, problem := range sizeProblems(f) {
			t.Error(problem)
		}
	}
}

func TestSizeProblems(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("\n", n) }
	for _, c := range []struct {
		path, text string
		want       string
	}{
		{"a/b.go", strings.Repeat("é", 100) + "\n", ""},
		{"a/b.go", strings.Repeat("é", 101) + "\n", "a/b.go:1: 101 columns"},
		{"a/b.c", "\n\t" + strings.Repeat("x", 97), "a/b.c:2: 101 columns"},
		{"a/b.go", "// see https://" + strings.Repeat("x", 200), ""},
		{"a/b.go", lines(500), ""},
		{"a/b.go", lines(501), "501 lines"},
		{"a/b_test.go", lines(800), ""},
		{"a/b_test.go", lines(801), "801 lines"},
		{"cmd/x/main.go", lines(60), ""},
		{"cmd/x/main.go", lines(61), "61 lines"},
	} {
		check(t, fmt.Sprintf("%s of %d bytes", c.path, len(c.text)),
			sizeProblems(source{c.path, c.text}), c.want)
	}
}

// check wants no problem, or one that contains want.
func check(t *testing.T, name string, got []string, want string) {
	t.Helper()
	if want == "" && len(got) > 0 {
		t.Errorf("%s: %q; want none", name, got)
	}
	if want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
		t.Errorf("%s: %q; want one with %q", name, got, want)
	}
}

// The words that no file has. They are put together here so that this file has none either.
func forbidden() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"a note to do something later": regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"a path of somebody's machine": regexp.MustCompile(
			`(^|[^\w.-])/(ro` + `ot|wo` + `rk|ho` + `me|Us` + `ers)/`),
		"the name of a private host": regexp.MustCompile(
			`\b[\w-]+\.(int` + `ernal|co` + `rp|l` + `an|intr` + `anet)(:\d|/|")`),
		// golangci-lint takes these for errors and versions that are constant.
		"a variable of the package": regexp.MustCompile(`^var (version|[eE]rr\w*) [^=]*$`),
		"a private address": regexp.MustCompile(
			`\b(1` + `0(\.\d{1,3}){3}|192\.` + `168(\.\d{1,3}){2}` +
				`|172\.(1[6-9]|2\d|3[01])(\.\d{1,3}){2})\b`),
	}
}

// wordProblems lists the forbidden words of a file.
func wordProblems(forbidden map[string]*regexp.Regexp, f source) []string {
	var problems []string
	for i, line := range f.lines() {
		for what, pattern := range forbidden {
			if found := pattern.FindString(line); found != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %q is %s",
					f.path, i+1, strings.TrimSpace(found), what))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

func TestWords(t *testing.T) {
	words := forbidden()
	for _, f := range tree(t) {
		for _, problem := range wordProblems(words, f) {
			t.Error(problem)
		}
	}
}

func TestWordProblems(t *testing.T) {
	for text, want := range map[string]string{
		"// TO" + "DO: more":                       "later",
		"# FIX" + "ME":                             "later",
		"mktemp /tmp/x.XXXXXX":                     "",
		"XX" + "X_unrecognized":                    "",
		"cat /wo" + "rk/notes.txt":                 "machine",
		`path := "/ro` + `ot/x"`:                   "machine",
		"framework/x, work/y, a/wo" + "rk/b":       "",
		"dial(etcd-0.co" + "rp:2379)":              "private host",
		`import "rondo/internal/app"`:              "",
		"var errLast error":                        "variable of the package",
		"var errTest = errors.New(`broke`)":        "",
		"	var err error":                           "",
		"--etcd 1" + "0.1.2.3:2379":                "private address",
		"--etcd 192.0.2.1:2379, 127.0.0.1:2":       "",
		"Goodfellow et al., Deep Learning 10.11.1": "",
	} {
		check(t, text, wordProblems(forbidden(), source{"a/b.go", text}), want)
	}
}

// Names of packages, folders and files that say nothing.
func emptyName(name string) bool {
	return slices.Contains([]string{"util", "utils", "common", "types", "helper", "helpers",
		"manager", "base", "misc", "shared", "lib"}, strings.TrimSuffix(name, "_test"))
}

func TestNames(t *testing.T) {
	for _, f := range tree(t) {
		for part := range strings.SplitSeq(strings.TrimSuffix(f.path, path.Ext(f.path)), "/") {
			kustomize := part == "base" && strings.HasPrefix(f.path, "k8s/") // its own word
			if emptyName(part) && !kustomize {
				t.Errorf("%s: %q says nothing; name what it holds", f.path, part)
			}
		}
	}
	for _, name := range []string{"util", "types_test", "helpers"} {
		if !emptyName(name) {
			t.Errorf("emptyName(%q) = false", name)
		}
	}
}
