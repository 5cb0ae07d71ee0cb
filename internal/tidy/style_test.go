package tidy

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// The limits on functions, in lines from `func` to the closing brace. Tests hold tables.
const (
	maxFunctionLines     = 70
	maxTestFunctionLines = 120
)

// longFunctions are those that may be longer, each with its reason.
func longFunctions() map[string]string {
	return map[string]string{}
}

// functionProblems says which functions are too long, and which are called init.
func functionProblems(f goSource, excused map[string]string) []string {
	var problems []string
	for _, declaration := range f.syntax.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := functionName(f, function)
		if function.Recv == nil && function.Name.Name == "init" {
			problems = append(problems, fmt.Sprintf("%s: func init hides what happens when; "+
				"let cmd call it", f.path))
		}
		limit := maxFunctionLines
		if f.isTest() {
			limit = maxTestFunctionLines
		}
		n := f.line(function.End()) - f.line(function.Pos()) + 1
		if n > limit && excused[name] == "" {
			problems = append(problems, fmt.Sprintf("%s:%d: %s has %d lines; at most %d",
				f.path, f.line(function.Pos()), name, n, limit))
		}
	}
	return problems
}

// functionName is the folder, the receiver's type if there is one, and the name:
// "compute/cpu.Device.Gemm".
func functionName(f goSource, function *ast.FuncDecl) string {
	name := function.Name.Name
	if function.Recv != nil {
		receiver := function.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		if generic, ok := receiver.(*ast.IndexExpr); ok {
			receiver = generic.X
		}
		if ident, ok := receiver.(*ast.Ident); ok {
			name = ident.Name + "." + name
		}
	}
	return path.Dir(f.path) + "." + name
}

func TestFunctions(t *testing.T) {
	excused := longFunctions()
	for _, f := range goTree(t) {
		if f.generated {
			continue
		}
		for _, problem := range functionProblems(f, excused) {
			t.Error(problem)
		}
	}
}

func TestFunctionProblems(t *testing.T) {
	function := func(head string, lines int) string {
		return "package b\n" + head + " {\n" + strings.Repeat("\n", lines-2) + "}\n"
	}
	excused := map[string]string{"a.T.Long": "it is a table"}
	for _, c := range []struct{ name, path, text, want string }{
		{"fits", "a/b.go", function("func f()", 70), ""},
		{"too long", "a/b.go", function("func f()", 71), "a/b.go:2: a.f has 71 lines"},
		{"method", "a/b.go", function("func (*T) f()", 71), "a.T.f has 71 lines"},
		{"generic", "a/b.go", function("func (t *T[K]) f()", 71), "a.T.f has 71 lines"},
		{"excused", "a/b.go", function("func (T) Long()", 99), ""},
		{"test", "a/b_test.go", function("func f()", 120), ""},
		{"long test", "a/b_test.go", function("func f()", 121), "121 lines"},
		{"init", "a/b.go", function("func init()", 3), "func init"},
		{"method init", "a/b.go", function("func (T) init()", 3), ""},
	} {
		check(t, c.name, functionProblems(parse(t, source{c.path, c.text}), excused), c.want)
	}
}

// packageCommentProblems says which packages lack a comment that starts as Go's tools expect.
func packageCommentProblems(files []goSource) []string {
	documented := map[string]bool{}
	for _, f := range files {
		folder := path.Dir(f.path)
		name := strings.TrimSuffix(f.syntax.Name.Name, "_test")
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + path.Base(folder) + " "
		}
		comment := f.syntax.Doc.Text()
		documented[folder] = documented[folder] || strings.HasPrefix(comment, want)
	}
	var problems []string
	for _, folder := range slices.Sorted(maps.Keys(documented)) {
		if !documented[folder] {
			problems = append(problems, fmt.Sprintf("%s: no package comment "+
				"(\"Package NAME ...\", or \"Command NAME ...\" for main)", folder))
		}
	}
	return problems
}

func TestPackageComments(t *testing.T) {
	files := slices.DeleteFunc(goTree(t), func(f goSource) bool {
		return within(f.path, "proto") // documented in the .proto files
	})
	for _, problem := range packageCommentProblems(files) {
		t.Error(problem)
	}
}

func TestPackageCommentProblems(t *testing.T) {
	for _, c := range []struct{ name, path, text, want string }{
		{"documented", "a/b/c.go", "// Package b does.\npackage b", ""},
		{"none", "a/b/c.go", "package b", "a/b: no package comment"},
		{"other", "a/b/c.go", "// Does.\npackage b", "a/b: no package comment"},
		{"command", "cmd/x/main.go", "// Command x does.\npackage main", ""},
		{"wrong command", "cmd/x/main.go", "// Package main does.\npackage main", "cmd/x: no"},
		{"tests alone", "a/b/c_test.go", "// Package b tests.\npackage b_test", ""},
	} {
		f := parse(t, source{c.path, c.text})
		check(t, c.name, packageCommentProblems([]goSource{f}), c.want)
	}
	two := []goSource{
		parse(t, source{"a/b/c.go", "package b"}),
		parse(t, source{"a/b/d.go", "// Package b does.\npackage b"}),
	}
	check(t, "in another file", packageCommentProblems(two), "")
}

// impure are what cluster's decisions must not do: they depend on their arguments alone.
func impure(f goSource) []string {
	var problems []string
	complain := func(n ast.Node, what string) {
		problems = append(problems, fmt.Sprintf("%s:%d: %s; callers pass in what happened and when",
			f.path, f.line(n.Pos()), what))
	}
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer",
		"NewTicker"}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			complain(n, "starts a goroutine")
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if ok && of.Name == "time" && slices.Contains(clock, n.Sel.Name) {
				complain(n, "reads the clock: time."+n.Sel.Name)
			}
		}
		return true
	})
	return problems
}

func TestClusterIsPure(t *testing.T) {
	found := false
	for _, f := range goTree(t) {
		if path.Dir(f.path) != "cluster" || f.isTest() {
			continue
		}
		found = true
		for _, problem := range impure(f) {
			t.Error(problem)
		}
	}
	if !found {
		t.Error("no file of cluster was read")
	}
	for text, want := range map[string]string{
		"package a\nfunc f(d time.Duration) {}":        "",
		"package a\nfunc f() { go f() }":               "a/b.go:2: starts a goroutine",
		"package a\nfunc f() { _ = time.Now() }":       "time.Now",
		"package a\nfunc f() { <-time.After(d) }":      "time.After",
		"package a\nfunc f(now T) { now.Since(then) }": "",
	} {
		check(t, text, impure(parse(t, source{"a/b.go", text})), want)
	}
}
