package reason

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestEveryCodeIsInTheTable reads codes.go itself: the compiler does not mind a
// constant that has no entry, and Lookup would call it unknown.
func TestEveryCodeIsInTheTable(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var constants, entries []string
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			if typ, ok := v.Type.(*ast.Ident); gen.Tok == token.CONST && ok && typ.Name == "Code" {
				for _, name := range v.Names {
					constants = append(constants, name.Name)
				}
			}
			if v.Names[0].Name != "table" {
				continue
			}
			for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
				code, ok := e.(*ast.CompositeLit).Elts[0].(*ast.Ident)
				if !ok {
					t.Fatalf("entry %d of the table does not begin with a constant", len(entries))
				}
				entries = append(entries, code.Name)
			}
		}
	}
	if len(constants) == 0 || len(entries) != len(All()) {
		t.Fatalf("found %d constants and %d entries of %d", len(constants), len(entries), len(All()))
	}
	sorted := cmpopts.SortSlices(func(a, b string) bool { return a < b })
	if diff := cmp.Diff(constants, entries, sorted); diff != "" {
		t.Errorf("constants and table differ (-constant without an entry +entry without a constant):\n%s", diff)
	}
}
