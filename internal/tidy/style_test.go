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

// packageCommentProblems lists packages without a comment that starts as Go's tools expect.
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

// mostMethods is the most methods that a type may have. A type with more does several things.
const mostMethods = 25

// crowded are types with more, and why.
func crowded() map[string]string {
	const device = "compute.Device alone has 26 methods, one for each of a network's operations"
	return map[string]string{"compute/cuda.Device": device + "; it is a Recorder, Stager, " +
		"Grouper and Sizer, too", "compute/cpu.Device": device,
		"compute/devicetest.Protected": device, "compute/devicetest.Recorder": device,
		"compute/cpu.native":   "one method for each kernel in C, and some in tests",
		"compute/cpu.refLayer": "a step and its derivative for each group of cells"}
}

// methodProblems lists types with too many methods. A method that several builds declare counts
// once.
func methodProblems(files []goSource) []string {
	methods := map[string]map[string]bool{} // by folder and type
	for _, f := range files {
		for _, d := range f.syntax.Decls {
			method, is := d.(*ast.FuncDecl)
			if !is || method.Recv == nil || f.generated {
				continue
			}
			of := method.Recv.List[0].Type
			if pointer, is := of.(*ast.StarExpr); is {
				of = pointer.X
			}
			switch generic := of.(type) {
			case *ast.IndexExpr:
				of = generic.X
			case *ast.IndexListExpr:
				of = generic.X
			}
			name := path.Dir(f.path) + "." + of.(*ast.Ident).Name
			if methods[name] == nil {
				methods[name] = map[string]bool{}
			}
			methods[name][method.Name.Name] = true
		}
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if n := len(methods[name]); n > mostMethods && crowded()[name] == "" {
			problems = append(problems, fmt.Sprintf("%s has %d methods, more than %d: split it",
				name, n, mostMethods))
		}
	}
	return problems
}

func TestMethods(t *testing.T) {
	for _, problem := range methodProblems(goTree(t)) {
		t.Error(problem)
	}
}

func TestMethodProblems(t *testing.T) {
	var text strings.Builder
	for i := range mostMethods {
		fmt.Fprintf(&text, "func (t *T[A]) m%d() {}\n", i)
	}
	fits := parse(t, source{"a/b/c.go", "package b\n" + text.String()})
	check(t, "most", methodProblems([]goSource{fits, fits}), "")
	more := parse(t, source{"a/b/d.go", "package b\nfunc (T[A]) more() {}"})
	check(t, "more", methodProblems([]goSource{fits, more}), "a/b.T has 26 methods")
	other := parse(t, source{"a/c/d.go", "package c\nfunc (T[A]) more() {}"})
	check(t, "another package", methodProblems([]goSource{fits, other}), "")
}

// impure lists the goroutines and clocks in a file of cluster, whose decisions must depend on their
// arguments alone.
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
