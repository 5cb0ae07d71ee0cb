package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A source is a file of the tree.
type source struct {
	path string // from the module's root, with slashes
	text string
}

// A goSource is a Go file with its syntax.
type goSource struct {
	source
	set       *token.FileSet
	syntax    *ast.File
	generated bool
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// lines returns the lines without their ends.
func (s source) lines() []string {
	return strings.Split(strings.TrimSuffix(s.text, "\n"), "\n")
}

func (s goSource) line(p token.Pos) int { return s.set.Position(p).Line }

// root returns the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "go.mod")); err != nil {
		t.Fatalf("the module's root: %v", err)
	}
	return folder
}

// tree returns the text files of the project, without testdata and the files that git, builds and
// runs make.
func tree(t *testing.T) []source {
	t.Helper()
	made := []string{".git", "bin", "dist", "checkpoints", "testdata", ".venv"}
	top := root(t)
	var files []source
	err := filepath.WalkDir(top, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(made, entry.Name()):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || !isText(entry.Name()):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(top, name)
		files = append(files, source{filepath.ToSlash(below), string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// isText reports whether a file is one that people write, by its name.
func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".c", ".h", ".s", ".S", ".cu", ".cuh", ".sh", ".py", ".proto", ".md", ".yaml",
		".yml", ".json", ".mod":
		return true
	}
	return slices.Contains([]string{"Makefile", "Dockerfile", "LICENSE", "run", ".gitignore"}, name)
}

// isCode reports whether a file holds code that the limits on lines and files apply to.
func (s source) isCode() bool {
	switch path.Ext(s.path) {
	case ".go", ".c", ".h", ".s", ".S", ".cu", ".cuh", ".sh", ".py":
		return true
	}
	return path.Base(s.path) == "Makefile" || s.path == ".ci/run"
}

// goTree returns the Go files of the project.
func goTree(t *testing.T) []goSource {
	t.Helper()
	var files []goSource
	for _, f := range tree(t) {
		if path.Ext(f.path) == ".go" {
			files = append(files, parse(t, f))
		}
	}
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	return files
}

func parse(t *testing.T, f source) goSource {
	t.Helper()
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, f.path, f.text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return goSource{f, set, syntax, ast.IsGenerated(syntax)}
}
