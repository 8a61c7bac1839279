package watch

import "testing"

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:9619", "0.0.0.0:9619", true},
		{"127.0.0.1:9619", ":9619", true},
		{"127.0.0.1:9619", "[::]:9619", true},
		{"127.0.0.1:9619", "localhost:9619", true},
		{"192.0.2.1:9619", "localhost:9619", false},
		{"127.0.0.1:9619", "127.0.0.2:9619", false},
		{"127.0.0.1:9619", "0.0.0.0:9620", false},
		{"127.0.0.1:0", "0.0.0.0:0", false}, // each gets a port of its own
		{"unix:/run/w.sock", "0.0.0.0:9619", false},
	} {
		a, err := parseAddress(tt.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := parseAddress(tt.b)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.overlaps(b); got != tt.want || b.overlaps(a) != got {
			t.Errorf("%s and %s: got %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}
