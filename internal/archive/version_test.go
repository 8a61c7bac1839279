package archive_test

import (
	"slices"
	"testing"

	"cks-etcd/internal/archive"
)

func TestCompareVersions(t *testing.T) {
	// Each sorts before all that follow; those in one row are equal.
	rows := [][]string{
		{"", "latest", "3.5", "v3.5.x", "3.5.1.2", "3.5.+1", "3.5.0-", "3.5.0-a b"},
		{"v2.3.8", "2.3.8"},
		{"3.4.9"},
		{"3.4.30"},
		{"3.5.0-alpha.0"},
		{"3.5.0-alpha.2"},
		{"3.5.0-alpha.10"},
		{"3.5.0-alpha.beta"},
		{"3.5.0-rc"},
		{"3.5.0-rc.1", "v3.5.0-rc.1+linux"},
		{"3.5.0", "v3.5.0", "3.5.0+build"},
		{"3.5.21"},
		{"3.10.0"},
		{"10.0.0"},
	}
	for i, as := range rows {
		for j, bs := range rows {
			want := min(max(i-j, -1), 1)
			for _, a := range as {
				for _, b := range bs {
					if got := archive.CompareVersions(a, b); got != want {
						t.Errorf("CompareVersions(%q, %q) = %d, want %d", a, b, got, want)
					}
				}
			}
		}
	}
	have := []string{"3.5.9", "", "3.6.0-rc.1", "3.5.21"}
	slices.SortFunc(have, archive.CompareVersions)
	if want := []string{"", "3.5.9", "3.5.21", "3.6.0-rc.1"}; !slices.Equal(have, want) {
		t.Errorf("got %q, want %q", have, want)
	}
}
