package inventory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFoldNames(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"", ""},
		{"a", "a"},
		{"a b", "a,b"},
		{"etcd1", "etcd1"},
		{"etcd1.example etcd3.example etcd2.example etcd5.example", "etcd[1-3,5].example"},
		{"203.0.113.10:50000 203.0.113.10:50001 203.0.113.10:50002", "203.0.113.10:[50000-50002]"},
		{"10.0.0.9:22 10.0.0.10:22 10.0.0.11:22", "10.0.0.[9-11]:22"},
		{"n08 n09 n10 n100", "n[08-10,100]"},
		{"n099 n100 n101", "n[099-101]"},
		{"n9 n10 n010", "n[9-10,010]"},
		{"r1-n1 r1-n2 r2-n1 r2-n2", "r[1-2]-n[1-2]"},
		{"b1 a1 b2 a1 a2 x", "b[1-2],a[1-2],x"},
		{"[2001:db8::1]:22 [2001:db8::2]:22", "[2001:db8::[1-2]]:22"},
		{"1.a 2.a", "[1-2].a"},
		{"a[1-2] a[3", "a[1-2],a[3"},
		{"n999999999999999 n1000000000000000", "n999999999999999,n1000000000000000"},
		{"n999999999999998 n999999999999999", "n[999999999999998-999999999999999]"},
	} {
		if got := FoldNames(strings.Fields(c.names)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.names, got, c.want)
		}
	}
}

// backAndForth checks that a folded set stands for the same names.
func backAndForth(names []string) error {
	folded := FoldNames(names)
	got, err := expand(folded)
	if err != nil {
		return fmt.Errorf("FoldNames(%q) = %q: %w", names, folded, err)
	}
	want := slices.Clone(names)
	slices.Sort(want)
	want = slices.Compact(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("FoldNames(%q) = %q, which is %q", names, folded, got)
	}
	return nil
}

func TestFoldNamesRoundTrip(t *testing.T) {
	name := rapid.OneOf(
		rapid.StringMatching(`n[0-9]{1,2}`),
		rapid.StringMatching(`(u@)?r[0-2]-n0?[0-9](\.example)?(:2[0-3])?`),
		rapid.StringMatching(`[0-9]{1,3}`),
		rapid.StringMatching(`\[2001:db8::[0-9a-f]\]:[1-9][0-9]?`),
		rapid.StringMatching(`10\.0\.[01]\.[0-9]{1,2}:5000[0-9]`),
	)
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(name, 1, 60).Draw(t, "names")
		if err := backAndForth(names); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzFoldNames(f *testing.F) {
	for _, s := range []string{"n1 n2", "[1 2]", "[::1]:1 [::1]:2", "01 1 001", "@[1] @[2]", "a[1-2]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		all := strings.Fields(s)
		var names []string
		for _, n := range all {
			if same, err := expand(n); err == nil && len(same) == 1 && same[0] == n && len(names) < MaxHosts {
				names = append(names, n)
			}
		}
		FoldNames(all)
		if len(names) > 0 {
			if err := backAndForth(names); err != nil {
				t.Error(err)
			}
		}
	})
}

func BenchmarkFoldNames(b *testing.B) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("203.0.113.%d:%d", i/100, 50000+i%100)
	}
	for b.Loop() {
		FoldNames(names)
	}
}
