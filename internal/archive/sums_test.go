package archive

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"
)

func TestParseSums(t *testing.T) {
	const name = "etcd-linux-amd64.tar.gz"
	a, b := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	for _, tt := range []struct {
		name, in, want string
		err            error
	}{
		{"alone", a + "\n", a, nil},
		{"alone without line break", strings.ToUpper(a), a, nil},
		{"text mode", b + "  other\n" + a + "  " + name + "\n", a, nil},
		{"binary mode", a + " *" + name + "\n", a, nil},
		{"one space", a + " " + name + "\n", a, nil},
		{"path", a + "  ./etcd/" + name + "\n", a, nil},
		{"BSD", "SHA256 (other) = " + b + "\nSHA256 (" + name + ") = " + a + "\n", a, nil},
		{"BSD, name with spaces", "SHA256 (a (b) = c/" + name + ") = " + a, a, nil},
		{"BSD, other algorithm", "MD5 (" + name + ") = 0123\nSHA256 (" + name + ") = " + a, a, nil},
		{"Windows", "\ufeff# list\r\n\r\n" + a + "  " + name + "\r\n", a, nil},
		{"escaped neighbour", `\` + b + `  odd\nname` + "\n" + a + "  " + name, a, nil},
		{"signed", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n" + a + "  " + name + "\n", a, nil},
		{"same twice", a + "  " + name + "\n" + a + "  x/" + name + "\n", a, nil},

		{"not in it", b + "  other\n", "", fs.ErrNotExist},
		{"only another algorithm", "SHA512 (" + name + ") = 00\n", "", fs.ErrNotExist},

		{"contradiction", a + "  " + name + "\n" + b + "  " + name + "\n", "", errNotSums},
		{"empty", "\n", "", errNotSums},
		{"page", "<!DOCTYPE html>\n<title>404</title>\n", "", errNotSums},
		{"half understood", b + "  other\n<oops>\n", "", errNotSums},
		{"two alone", a + "\n" + b + "\n", "", errNotSums},
		{"SHA-1", strings.Repeat("0a", 20) + "  " + name + "\n", "", errNotSums},
		{"SHA-512", strings.Repeat("0a", 64) + "  " + name + "\n", "", errNotSums},
		{"no name", a + "  \n" + b + " *\n", "", errNotSums},
		{"long line", strings.Repeat("x", 1<<16), "", errNotSums},
		{"long list", strings.Repeat(b+"  other\n", 20_000), "", errNotSums},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseSums(strings.NewReader(tt.in), name)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
	r := io.MultiReader(strings.NewReader(b+"  other\n"), iotest.ErrReader(io.ErrClosedPipe))
	if _, err := ParseSums(r, name); !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("failing reader: got %v", err)
	}
}

func FuzzParseSums(f *testing.F) {
	a := strings.Repeat("0a", 32)
	for _, s := range []string{a, a + "  name\n", a + " *name", "SHA256 (name) = " + a, `\` + a + `  na\nme`, "MD5 (x) = 1", "<html>", " (", "SHA256 () = " + a, "\ufeff"} {
		f.Add(s, "name")
	}
	f.Fuzz(func(t *testing.T, in, name string) {
		sum, err := ParseSums(strings.NewReader(in), name)
		if (sum == "") == (err == nil) {
			t.Fatalf("digest %q with error %v", sum, err)
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotSums) {
				t.Errorf("error of an unknown kind: %v", err)
			}
			return
		}
		if len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
			t.Errorf("%q is no digest", sum)
		}
		if !strings.Contains(strings.ToLower(in), sum) {
			t.Errorf("%q is not in the input", sum)
		}
	})
}
