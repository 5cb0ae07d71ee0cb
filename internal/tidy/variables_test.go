package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// Package variables are constants that Go cannot write as such: errors to compare with, compiled
// patterns, embedded files, tables. variableProblems tells them from state by syntax alone:
//
//   - `var _ T = x` is an assertion;
//   - a variable under //go:embed, or of a call in constantCalls, is a constant;
//   - an unexported table or conversion is one while no file of the package assigns to it, to a
//     part of it, or takes its address;
//   - everything else is state, and needs an entry in variables with its reason.

// variables are the exceptions, by folder and name.
func variables() map[string]string {
	return map[string]string{
		"model.building":      "Gorgonia builds graphs over maps of its own that are not locked",
		"allreduce/shm.order": "an address for the race detector; other builds have it not",
	}
}

// constantCalls return what nobody can change, or means to.
func constantCalls() []string {
	return []string{"errors.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer",
		"sync.OnceValue", "sync.OnceValues", "sync.OnceFunc", "crc32.MakeTable", "math.Inf",
		"math.NaN", "math.Log", "math.Sqrt", "template.Must", "status.Error", "len"}
}

// A variable is one name of a package-level var.
type variable struct {
	file  goSource
	name  *ast.Ident
	value ast.Expr // nil if it has none
	embed bool
}

// packageVariables returns the variables that a file declares, less the assertions.
func packageVariables(f goSource) []variable {
	var found []variable
	for _, declaration := range f.syntax.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok || general.Tok != token.VAR {
			continue
		}
		for _, spec := range general.Specs {
			spec := spec.(*ast.ValueSpec)
			embed := embeds(general.Doc) || embeds(spec.Doc)
			for i, name := range spec.Names {
				v := variable{file: f, name: name, embed: embed}
				if i < len(spec.Values) {
					v.value = spec.Values[i]
				}
				if name.Name != "_" {
					found = append(found, v)
				}
			}
		}
	}
	return found
}

func embeds(comments *ast.CommentGroup) bool {
	return comments != nil && slices.ContainsFunc(comments.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// constant says whether a variable is one by its declaration, and if so, whether only as long as
// nothing changes it.
func (v variable) constant() (is, ifUnchanged bool) {
	if v.embed {
		return true, false
	}
	switch value := v.value.(type) {
	case *ast.CompositeLit, *ast.BasicLit, *ast.BinaryExpr, *ast.UnaryExpr:
		_, reference := value.(*ast.UnaryExpr)
		return !reference && !v.name.IsExported(), true
	case *ast.CallExpr:
		switch called := value.Fun.(type) {
		case *ast.ArrayType:
			return !v.name.IsExported(), true
		case *ast.Ident:
			return slices.Contains(constantCalls(), called.Name), false
		case *ast.SelectorExpr:
			if of, ok := called.X.(*ast.Ident); ok {
				return slices.Contains(constantCalls(), of.Name+"."+called.Sel.Name), false
			}
		}
	}
	return false, false
}

// changed returns the names that a file may change: the first name of what it assigns to, counts
// up or takes the address of, where that is not declared in a function.
func changed(f goSource) map[string]bool {
	names := map[string]bool{}
	note := func(e ast.Expr) {
		if name := firstName(e); name != nil && isOfPackage(f, name) {
			names[name.Name] = true
		}
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, target := range n.Lhs {
					note(target)
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				note(n.Key)
				note(n.Value)
			}
		case *ast.IncDecStmt:
			note(n.X)
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				note(n.X)
			}
		}
		return true
	})
	return names
}

// firstName returns x of x.f[i].g, or nil.
func firstName(e ast.Expr) *ast.Ident {
	for {
		switch inner := e.(type) {
		case *ast.Ident:
			return inner
		case *ast.SelectorExpr:
			e = inner.X
		case *ast.IndexExpr:
			e = inner.X
		case *ast.SliceExpr:
			e = inner.X
		case *ast.StarExpr:
			e = inner.X
		case *ast.ParenExpr:
			e = inner.X
		default:
			return nil
		}
	}
}

// isOfPackage says whether a name stands for something declared outside functions. The parser
// resolves names within a file; what it does not find there is the package's, or another's.
func isOfPackage(f goSource, name *ast.Ident) bool {
	return name.Obj == nil || f.syntax.Scope.Lookup(name.Name) == name.Obj
}

// variableProblems says which variables of a package are state.
func variableProblems(files []goSource, excused map[string]string) []string {
	changes := map[string]bool{}
	for _, f := range files {
		maps.Copy(changes, changed(f))
	}
	var problems []string
	for _, f := range files {
		for _, v := range packageVariables(f) {
			is, ifUnchanged := v.constant()
			name := path.Dir(f.path) + "." + v.name.Name
			if is && (!ifUnchanged || !changes[v.name.Name]) || excused[name] != "" {
				continue
			}
			problems = append(problems, fmt.Sprintf("%s:%d: %s is a variable of the package; "+
				"give it to who needs it", f.path, f.line(v.name.Pos()), v.name.Name))
		}
	}
	return problems
}

func TestVariables(t *testing.T) {
	packages := map[string][]goSource{}
	for _, f := range goTree(t) {
		if !f.generated && !f.isTest() {
			packages[path.Dir(f.path)] = append(packages[path.Dir(f.path)], f)
		}
	}
	for _, files := range packages {
		for _, problem := range variableProblems(files, variables()) {
			t.Error(problem)
		}
	}
}

func TestVariableProblems(t *testing.T) {
	const state = "is a variable of the package"
	excused := map[string]string{"a.mu": "a library's state"}
	for text, want := range map[string]string{
		"var _ I = (*T)(nil)":                          "",
		"var ErrGone = errors.New(`gone`)":             "",
		"var (\n\ta = errors.New(`a`)\n\tb = T{1}\n)":  "",
		"//go:embed x\nvar text string":                "",
		"var names = []string{`a`}":                    "",
		"var magic = []byte(`RONDO`)":                  "",
		"var mu sync.Mutex":                            "",
		"var lock sync.Mutex":                          state,
		"var n int":                                    state,
		"var n = 1\nfunc f() { n = 2 }":                state,
		"var n = 1\nfunc f() { n++ }":                  state,
		"var n = 1\nfunc f() { g(&n) }":                state,
		"var n = 1\nfunc f() { for n = range 3 { } }":  state,
		"var n = 1\nfunc f() { n := 2; n++ }":          "",
		"var n = 1\nfunc f() { var n int; n++ }":       "",
		"var m = map[int]int{}\nfunc f() { m[1] = 2 }": state,
		"var t = T{}\nfunc f() { (*t.a).b[1].c += 2 }": state,
		"var Names = []string{`a`}":                    state,
		"var server = newServer()":                     state,
		"var server = &Server{}":                       state,
	} {
		f := parse(t, source{"a/b.go", "package a\n" + text})
		check(t, text, variableProblems([]goSource{f}, excused), want)
	}
	two := []goSource{
		parse(t, source{"a/b.go", "package a\nvar n = []int{1}"}),
		parse(t, source{"a/c.go", "package a\nfunc f() { n[0] = 2 }"}),
	}
	check(t, "changed in another file", variableProblems(two, nil), state)
}
