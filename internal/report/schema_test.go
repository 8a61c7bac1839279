package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

const schemaFile = "../../docs/schema/nodes.schema.json"

// A schema is the part of JSON Schema (draft 2020-12) that the file uses.
type schema map[string]any

func readSchema(t *testing.T) schema {
	t.Helper()
	return readSchemaFile(t, schemaFile)
}

func readSchemaFile(t *testing.T, name string) schema {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (root schema) resolve(ref string) (schema, error) {
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	d, found := root["$defs"].(map[string]any)[name].(map[string]any)
	if !ok || !found {
		return nil, fmt.Errorf("unknown $ref %s", ref)
	}
	return d, nil
}

// check returns how v differs from s. A keyword it does not know is an error, so
// that the file cannot promise what is not checked.
func (root schema) check(s schema, v any, at string) (bad []string) {
	fail := func(format string, args ...any) { bad = append(bad, at+": "+fmt.Sprintf(format, args...)) }
	for keyword, arg := range s {
		switch keyword {
		case "$schema", "$defs", "title", "description":
		case "$ref":
			to, err := root.resolve(arg.(string))
			if err != nil {
				fail("%v", err)
				continue
			}
			bad = append(bad, root.check(to, v, at)...)
		case "allOf":
			for _, sub := range arg.([]any) {
				bad = append(bad, root.check(sub.(map[string]any), v, at)...)
			}
		case "anyOf":
			ok := false
			for _, sub := range arg.([]any) {
				ok = ok || len(root.check(sub.(map[string]any), v, at)) == 0
			}
			if !ok {
				fail("%v matches none of anyOf", v)
			}
		case "type":
			types, many := arg.([]any)
			if !many {
				types = []any{arg}
			}
			if !slices.ContainsFunc(types, func(t any) bool { return hasType(v, t.(string)) }) {
				fail("%v has none of the types %v", v, types)
			}
		case "const":
			if v != arg {
				fail("%v, want %v", v, arg)
			}
		case "enum":
			if !slices.Contains(arg.([]any), v) {
				fail("%v is not one of %v", v, arg)
			}
		case "pattern":
			if str, ok := v.(string); ok && !regexp.MustCompile(arg.(string)).MatchString(str) {
				fail("%q does not match %s", str, arg)
			}
		case "format":
			if str, ok := v.(string); ok {
				if _, err := time.Parse(time.RFC3339, str); err != nil || arg != "date-time" {
					fail("%q is no %s", str, arg)
				}
			}
		case "minimum":
			if n, ok := v.(float64); ok && n < arg.(float64) {
				fail("%v is below %v", n, arg)
			}
		case "items":
			list, _ := v.([]any)
			for i, e := range list {
				bad = append(bad, root.check(arg.(map[string]any), e, fmt.Sprintf("%s[%d]", at, i))...)
			}
		case "properties":
			m, _ := v.(map[string]any)
			for name, sub := range arg.(map[string]any) {
				if e, ok := m[name]; ok {
					bad = append(bad, root.check(sub.(map[string]any), e, at+"."+name)...)
				}
			}
		case "additionalProperties":
			m, _ := v.(map[string]any)
			for name, e := range m {
				bad = append(bad, root.check(arg.(map[string]any), e, at+"."+name)...)
			}
		case "required":
			m, ok := v.(map[string]any)
			for _, name := range arg.([]any) {
				if _, there := m[name.(string)]; ok && !there {
					fail("%s is missing", name)
				}
			}
		default:
			fail("unknown keyword %s", keyword)
		}
	}
	return bad
}

func hasType(v any, t string) bool {
	switch v := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case string:
		return t == "string"
	case float64:
		return t == "number" || t == "integer" && v == math.Trunc(v)
	case []any:
		return t == "array"
	case map[string]any:
		return t == "object"
	}
	return false
}

// fields returns the JSON names of the fields of a struct, and those of them
// that may be left out.
func fields(t reflect.Type) (names, optional []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			n, o := fields(f.Type)
			names, optional = append(names, n...), append(optional, o...)
			continue
		}
		names = append(names, name)
		if strings.Contains(opts, "omit") {
			optional = append(optional, name)
		}
	}
	return names, optional
}

// promised returns the properties and required names of a definition.
func (root schema) promised(s schema) (names, required []string) {
	for n := range asMap(s["properties"]) {
		names = append(names, n)
	}
	list, _ := s["required"].([]any)
	for _, n := range list {
		required = append(required, n.(string))
	}
	parts, _ := s["allOf"].([]any)
	for _, p := range parts {
		sub := schema(p.(map[string]any))
		if ref, ok := sub["$ref"].(string); ok {
			sub, _ = root.resolve(ref)
		}
		n, r := root.promised(sub)
		names, required = append(names, n...), append(required, r...)
	}
	return names, required
}

func asMap(v any) map[string]any { m, _ := v.(map[string]any); return m }

// The schema and the Go types name the same fields, and agree on what is always
// there.
func TestSchemaNamesTheFields(t *testing.T) {
	root := readSchema(t)
	types := map[string]any{
		"report": Report{}, "problem": Problem{}, "node": NodeResult{}, "observation": Observation{}, "fold": Fold{},
		"health": HealthResult{}, "health_member": HealthMember{}, "event": Event{}, "event_line": EventLine{}, "result_line": ResultLine{},
	}
	for name := range asMap(root["$defs"]) {
		if _, ok := types[name]; !ok && name != "code" && name != "class" {
			t.Errorf("the schema defines %s, which is no type", name)
		}
	}
	for name, v := range types {
		def, err := root.resolve("#/$defs/" + name)
		if err != nil {
			t.Error(err)
			continue
		}
		names, optional := fields(reflect.TypeOf(v))
		promised, required := root.promised(def)
		must := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(optional, n) })
		for _, l := range [][]string{names, promised, must, required} {
			sort.Strings(l)
		}
		if diff := cmp.Diff(names, promised); diff != "" {
			t.Errorf("%s: fields (-Go +schema):\n%s", name, diff)
		}
		if diff := cmp.Diff(must, required); diff != "" {
			t.Errorf("%s: required (-Go +schema):\n%s", name, diff)
		}
	}
}

// What is really written is what the schema says, on every way to end.
func TestSchemaHoldsOutputs(t *testing.T) {
	root := readSchema(t)
	for name, r := range reports() {
		r = Complete(r, foldTest)
		if name == "hostile" {
			r.Health.Verdict = "unknown" // is not text of a node
		}
		var b bytes.Buffer
		if err := WriteJSON(&b, r); err != nil {
			t.Fatal(err)
		}
		for _, bad := range root.check(root, parse(t, b.Bytes()), name) {
			t.Error(bad)
		}
		b.Reset()
		j := NewJSONL(&b)
		for i, state := range []string{"connecting", "active"} {
			if err := j.Event(Event{At: after(float64(i)), Elapsed: float64(i), Node: "etcd1", State: state, Want: 2, Checks: i}); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Result(r); err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(bytes.TrimSuffix(b.Bytes(), []byte("\n")), []byte("\n"))
		for i, l := range lines {
			def := "#/$defs/event_line"
			if i == len(lines)-1 {
				def = "#/$defs/result_line"
			}
			for _, bad := range root.check(schema{"$ref": def}, parse(t, l), fmt.Sprintf("%s line %d", name, i)) {
				t.Error(bad)
			}
		}
	}
}

// The checker itself must find faults.
func TestSchemaCheckFindsFaults(t *testing.T) {
	root := readSchema(t)
	r := Complete(reports()["issue"], foldTest)
	for name, spoil := range map[string]func(m map[string]any){
		"missing field":  func(m map[string]any) { delete(m, "summary") },
		"null list":      func(m map[string]any) { m["nodes"] = nil },
		"unknown result": func(m map[string]any) { m["result"] = "maybe" },
		"deep":           func(m map[string]any) { asMap(m["nodes"].([]any)[0])["class"] = "great" },
		"time":           func(m map[string]any) { m["started"] = "yesterday" },
		"code":           func(m map[string]any) { asMap(m["nodes"].([]any)[0])["code"] = "No Code" },
	} {
		var b bytes.Buffer
		if err := WriteJSON(&b, r); err != nil {
			t.Fatal(err)
		}
		m := asMap(parse(t, b.Bytes()))
		spoil(m)
		if len(root.check(root, m, "")) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestResultNamesEveryStatus(t *testing.T) {
	seen := map[string]int{}
	for _, i := range reason.All() {
		name := ResultOf(i.Exit)
		if other, ok := seen[name]; ok && other != i.Exit {
			t.Errorf("%s stands for %d and %d", name, other, i.Exit)
		}
		seen[name] = i.Exit
	}
}

func parse(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
