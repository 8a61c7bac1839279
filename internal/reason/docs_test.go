package reason

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the generated pages of docs/")

// TestDocs holds docs/reasons.md and the table of codes together.
func TestDocs(t *testing.T) {
	var b bytes.Buffer
	fmt.Fprint(&b, `# Reasons

<!-- Generated from internal/reason by "make docs"; do not edit. -->

Every way to end has one code. The same code stands in the state file
`+"`/var/lib/etcd-nodeagent/state.json`"+`, in JSON and JUnit reports and in metrics. The
message of a code is one line: the code's words, then the case at hand.

A **permanent** reason stays until something is changed. A **transient** one may be
gone at the next try. **Unknown** means that the question could not be answered: it is
neither a yes nor a no.

| code | class | exit status | message begins with | what to do |
|---|---|---|---|---|
`)
	for _, i := range All() {
		fmt.Fprintf(&b, "| `%s` | %s | %d | %s | %s |\n", i.Code, i.Class, i.Exit, i.Title, i.Hint)
	}
	fmt.Fprintln(&b)
	path := filepath.Join("..", "..", "docs", "reasons.md")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(got)); diff != "" {
		t.Errorf("docs/reasons.md is not what the table says; run 'make docs' (-want +got):\n%s", diff)
	}
}
