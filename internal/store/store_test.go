package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

// makeTree writes files below dir. A content that begins with "-> " makes a
// symbolic link, "|" a named pipe; a name that ends in "/" is a directory.
func makeTree(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		above := filepath.Dir(file)
		if strings.HasSuffix(name, "/") {
			above = file
		}
		err := os.MkdirAll(above, 0o755)
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil || above == file:
		case link:
			err = os.Symlink(target, file)
		case content == "|":
			err = syscall.Mkfifo(file, 0o600)
		default:
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// properties is a template.properties as CloudStack saves it.
func properties(id, name string, size int) string {
	return fmt.Sprintf("#\n#Thu Oct 30 13:51:39 UTC 2025\nid=%s\npublic=true\nuniquename=%s\nfilename=%s.iso\niso=true\niso.filename=%s.iso\niso.size=%d\niso.virtualsize=%d\nsize=%d\n",
		id, name, name, name, size, size, size)
}

// lines walks root and words what was found, with paths below root.
func lines(t *testing.T, root string) []string {
	t.Helper()
	var list []string
	err := Walk(t.Context(), root, Options{}, func(c Copy) error {
		list = append(list, line(root, c))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func line(root string, c Copy) string {
	below := func(p string) string {
		if p == "" {
			return "-"
		}
		return strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
	}
	s := fmt.Sprintf("%s account=%s template=%s name=%s size=%d", below(c.Path), c.Account, c.Template, c.Name, c.Size)
	if c.Err != nil {
		s += fmt.Sprintf(" %s", reason.Of(c.Err))
	}
	return s
}

// One template directory in every state that one was seen in.
func TestTemplateDirectory(t *testing.T) {
	const name = "203-1-7c82b718-0c4f-3a35-a89e-a95d188dc81c"
	const temp = "dnld11702029196213250819tmp_"
	good := properties("203", name, 5)
	without := func(key string) string {
		var b strings.Builder
		for l := range strings.Lines(good) {
			if !strings.HasPrefix(l, key+"=") {
				b.WriteString(l)
			}
		}
		return b.String()
	}
	type m = map[string]string
	for _, tt := range []struct {
		name  string
		files m
		path  string // "" when none can be named
		size  int64
		code  reason.Code // "" when complete
		text  string
		none  bool // nothing is reported
	}{
		{name: "complete", files: m{name + ".iso": "12345", propertiesFile: good}, path: name + ".iso", size: 5},
		{name: "complete, and a download broke off before", files: m{name + ".iso": "12345", propertiesFile: good, temp: "1"}, path: name + ".iso", size: 5},
		{name: "empty directory", files: m{}, size: -1, code: reason.ISOIncomplete, text: "the directory is empty"},
		{name: "B26: download in progress", files: m{temp: "123"}, size: -1, code: reason.ISOIncomplete, text: temp},
		{name: "B86: download in progress, properties begun", files: m{temp: "123", propertiesFile: "filename=x.iso\nsize=0\n"}, size: -1, code: reason.ISOIncomplete, text: temp},
		{name: "B86: partial file", files: m{name + ".iso": "123", propertiesFile: good}, path: name + ".iso", size: 5, code: reason.ISOIncomplete, text: "has 3 bytes, not the 5"},
		{name: "longer file", files: m{name + ".iso": "1234567", propertiesFile: good}, path: name + ".iso", size: 5, code: reason.ISOIncomplete, text: "has 7 bytes, not the 5"},
		{name: "no properties", files: m{name + ".iso": "12345"}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "no template.properties"},
		{name: "no properties, two ISOs", files: m{"a.iso": "1", "b.iso": "2"}, size: -1, code: reason.ISOIncomplete, text: "no template.properties"},
		{name: "two ISOs", files: m{name + ".iso": "12345", "b.iso": "2", propertiesFile: good}, path: name + ".iso", size: 5, code: reason.ISOIncomplete, text: "there are 2 ISOs"},
		{name: "no iso.filename", files: m{name + ".iso": "12345", propertiesFile: without("iso.filename")}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "names no ISO"},
		{name: "no iso.filename, two ISOs", files: m{"a.iso": "1", "b.iso": "2", propertiesFile: without("iso.filename")}, size: -1, code: reason.ISOIncomplete, text: "names no ISO"},
		{name: "no iso.size", files: m{name + ".iso": "12345", propertiesFile: without("iso.size")}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "iso.size"},
		{name: "iso.size is no number", files: m{name + ".iso": "12345", propertiesFile: without("iso.size") + "iso.size=-5\n"}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "iso.size"},
		{name: "iso.filename leads outside", files: m{name + ".iso": "12345", propertiesFile: without("iso.filename") + "iso.filename=../../../etc/x.iso\n"}, size: -1, code: reason.ISOIncomplete, text: "not in the directory"},
		{name: "iso.filename is absolute", files: m{name + ".iso": "12345", propertiesFile: without("iso.filename") + "iso.filename=/etc/x.iso\n"}, size: -1, code: reason.ISOIncomplete, text: "not in the directory"},
		{name: "iso.filename is the directory above", files: m{name + ".iso": "12345", propertiesFile: without("iso.filename") + "iso.filename=..\n"}, size: -1, code: reason.ISOIncomplete, text: "not in the directory"},
		{name: "iso.filename is empty", files: m{name + ".iso": "12345", propertiesFile: without("iso.filename") + "iso.filename=\n"}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "names no ISO"},
		{name: "the ISO is gone", files: m{propertiesFile: good}, size: 5, code: reason.ISOIncomplete, text: "which is not there"},
		{name: "the ISO has another name", files: m{"b.iso": "12345", propertiesFile: good}, size: 5, code: reason.ISOIncomplete, text: "which is not there"},
		{name: "the ISO is a link", files: m{name + ".iso": "-> /etc/passwd", propertiesFile: good}, size: 5, code: reason.ISOIncomplete, text: "symbolic link"},
		{name: "the ISO is a directory", files: m{name + ".iso/": "", propertiesFile: good}, size: 5, code: reason.ISOIncomplete, text: "a directory"},
		{name: "the ISO is a pipe", files: m{name + ".iso": "|", propertiesFile: good}, size: 5, code: reason.ISOIncomplete, text: "a special file"},
		{name: "the properties are a link", files: m{name + ".iso": "12345", propertiesFile: "-> /etc/passwd"}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "not a regular file"},
		{name: "the properties are a pipe", files: m{name + ".iso": "12345", propertiesFile: "|"}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "not a regular file"},
		{name: "the properties are a directory", files: m{name + ".iso": "12345", propertiesFile + "/": ""}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "not a regular file"},
		{name: "the properties are damaged", files: m{name + ".iso": "12345", propertiesFile: `a=\u12`}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "malformed escape"},
		{name: "the properties are too long", files: m{name + ".iso": "12345", propertiesFile: strings.Repeat("#", maxProperties+1)}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "more than"},
		{name: "the properties are empty", files: m{name + ".iso": "12345", propertiesFile: ""}, path: name + ".iso", size: -1, code: reason.ISOIncomplete, text: "names no ISO"},
		{name: "escapes", files: m{"a b=é.iso": "1", propertiesFile: "iso=true\nuniquename=a\\ b\\=\\u00e9\niso.filename=a\\ b\\=\\u00e9.iso\niso.size=1\n"}, path: "a b=é.iso", size: 1},
		{name: "a template of another kind", files: m{"x.qcow2": "1", propertiesFile: "qcow2=true\nqcow2.filename=x.qcow2\nqcow2.size=1\n"}, none: true},
		{name: "a template of another kind, with iso=false", files: m{"x.ova": "1", propertiesFile: "iso=false\nova=true\n"}, none: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "template/tmpl/1/203")
			makeTree(t, root, m{"template/tmpl/1/203/": ""})
			makeTree(t, dir, tt.files)
			walked := copies(t, func(each func(Copy) error) error { return Walk(t.Context(), root, Options{}, each) })
			found, err := Template(t.Context(), root, "203", Options{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(walked, found, cmp.Comparer(func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) })); diff != "" {
				t.Errorf("Walk and Template differ:\n%s", diff)
			}
			if tt.none {
				if len(walked) > 0 {
					t.Errorf("found %+v, want nothing", walked)
				}
				return
			}
			if len(walked) != 1 {
				t.Fatalf("found %+v, want one", walked)
			}
			c := walked[0]
			path := tt.path
			if path != "" {
				path = filepath.Join(dir, path)
			}
			if c.Path != path || c.Dir != dir || c.Account != "1" || c.Template != "203" || c.Size != tt.size {
				t.Errorf("found %+v, want %s of %d bytes", c, path, tt.size)
			}
			if (c.Err == nil) != (tt.code == "") || c.Err != nil && reason.Of(c.Err) != tt.code || c.Err != nil && !strings.Contains(c.Err.Error(), tt.text) {
				t.Errorf("error is %v, want %s: %s", c.Err, tt.code, tt.text)
			}
			if c.Err != nil && !strings.Contains(c.Err.Error(), dir) {
				t.Errorf("error is %v, which does not name the directory", c.Err)
			}
		})
	}
}

func TestUniqueName(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "a.iso",
		"uniquename=203-1-x\n": "203-1-x",
		"uniquename=\n":        "a.iso",
		"uniquename=" + strings.Repeat("x", maxName) + "\n":   strings.Repeat("x", maxName),
		"uniquename=" + strings.Repeat("x", maxName+1) + "\n": "a.iso", // no name, and more than can be remembered
	} {
		root := makeTree(t, t.TempDir(), map[string]string{
			"template/tmpl/1/203/a.iso":               "12345",
			"template/tmpl/1/203/template.properties": text + "iso.filename=a.iso\niso.size=5\n",
		})
		got, err := Template(t.Context(), root, "203", Options{})
		if err != nil || len(got) != 1 || got[0].Err != nil || got[0].Name != want {
			t.Errorf("%.30q: %+v, %v, want the name %.30q", text, got, err, want)
		}
	}
}

func copies(t *testing.T, walk func(func(Copy) error) error) []Copy {
	t.Helper()
	var list []Copy
	if err := walk(func(c Copy) error {
		list = append(list, c)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// exportTree is an export with all that lies around on one.
func exportTree(t *testing.T) string {
	t.Helper()
	tmpl := "template/tmpl/"
	return makeTree(t, t.TempDir(), map[string]string{
		tmpl + "1/203/a.iso":                      "12345",
		tmpl + "1/203/template.properties":        properties("203", "a", 5),
		tmpl + "1/203/.snapshot/daily/a.iso":      "1",
		tmpl + "1/8/x.qcow2":                      "1",
		tmpl + "1/8/template.properties":          "qcow2=true\n",
		tmpl + "2/204/":                           "",
		tmpl + "2/203/b.iso":                      "12345",
		tmpl + "2/203/template.properties":        properties("203", "b", 5),
		tmpl + "2/loop":                           "-> ../..",
		tmpl + "1/.snapshot/daily/203/a.iso":      "12345",
		".snapshot/daily/" + tmpl + "1/203/a.iso": "12345",
		"snapshots/2/9/x.iso":                     "1",
		"volumes/2/9/y.iso":                       "1",
		"systemvm/systemvm.iso":                   "1",
		"lost+found/":                             "",
		"isos/debian.ISO":                         "1",
		"isos/latest.iso":                         "-> debian.ISO",
		"isos/gone.iso":                           "-> nowhere",
		"isos/dir.iso/inner.iso":                  "1",
		"isos/dirlink.iso":                        "-> dir.iso",
		"isos/pipe.iso":                           "|",
		"isos/self":                               "-> .",
		"isos/notes.txt":                          "1",
	})
}

// A store is the same from whatever level it is walked.
func TestWalkFromAnyLevel(t *testing.T) {
	root := exportTree(t)
	one := []string{
		"203/a.iso account=1 template=203 name=a size=5",
	}
	two := []string{
		"203/b.iso account=2 template=203 name=b size=5",
		"- account=2 template=204 name=204 size=-1 iso-incomplete",
	}
	under := func(prefix string, list ...string) []string {
		list = slices.Clone(list)
		for i, l := range list {
			if !strings.HasPrefix(l, "- ") {
				list[i] = prefix + l
			}
		}
		return list
	}
	isos := []string{
		"debian.ISO account= template= name=debian.ISO size=-1",
		"gone.iso account= template= name=gone.iso size=-1 source-missing",
		"latest.iso account= template= name=latest.iso size=-1",
		"dir.iso/inner.iso account= template= name=inner.iso size=-1",
	}
	tmpl := append(under("1/", one...), under("2/", two...)...)
	link := filepath.Join(t.TempDir(), "secondary")
	if err := os.Symlink(filepath.Join(root, "template/tmpl"), link); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		root string
		want []string
	}{
		{root, append(under("isos/", isos...), under("template/tmpl/", tmpl...)...)},
		{root + "/template", under("tmpl/", tmpl...)},
		{root + "/template/", under("tmpl/", tmpl...)},
		{root + "/template/tmpl", tmpl},
		{root + "/template/tmpl/2", two},
		{root + "/template/tmpl/1", one},
		{root + "/template/tmpl/1/203", []string{"a.iso account=1 template=203 name=a size=5"}},
		{root + "/template/tmpl/2/204", []string{"- account=2 template=204 name=204 size=-1 iso-incomplete"}},
		{root + "/isos", isos},
		{link, tmpl},
		{link + "/2", two},
	} {
		t.Run(strings.TrimPrefix(tt.root, root), func(t *testing.T) {
			if diff := cmp.Diff(tt.want, lines(t, strings.TrimSuffix(tt.root, "/"))); diff != "" {
				t.Errorf("copies (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("relative", func(t *testing.T) {
		t.Chdir(filepath.Join(root, "template/tmpl/1/203"))
		if diff := cmp.Diff([]string{"a.iso account=1 template=203 name=a size=5"}, lines(t, ".")); diff != "" {
			t.Errorf("copies (-want +got):\n%s", diff)
		}
	})
	for _, at := range []string{"", "/template", "/template/tmpl"} {
		t.Run("Template from "+at, func(t *testing.T) {
			got, err := Template(t.Context(), root+at, "203", Options{})
			if err != nil || len(got) != 2 || got[0].Account != "1" || got[1].Account != "2" {
				t.Errorf("got %+v, %v", got, err)
			}
			if got, err := Template(t.Context(), root+at, "999", Options{}); err != nil || len(got) > 0 {
				t.Errorf("got %+v, %v for a template that is not there", got, err)
			}
		})
	}
	for _, at := range []string{"/template/tmpl/1", "/template/tmpl/1/203"} {
		got, err := Template(t.Context(), root+at, "203", Options{})
		if err != nil || len(got) != 1 || got[0].Name != "a" {
			t.Errorf("%s: got %+v, %v", at, got, err)
		}
	}
	if got, err := Template(t.Context(), root+"/template/tmpl/1/203", "8", Options{}); err != nil || len(got) > 0 {
		t.Errorf("got %+v, %v for another template", got, err)
	}
	for _, id := range []string{"", "..", "203/../8", "7c82b718-0c4f-3a35-a89e-a95d188dc81c"} {
		if _, err := Template(t.Context(), root, id, Options{}); reason.Of(err) != reason.Usage {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

// Directories with templates that are mounted without the path that tells them.
func TestWithoutTheLayout(t *testing.T) {
	root := makeTree(t, t.TempDir(), map[string]string{
		"1/203/a.iso":               "12345",
		"1/203/template.properties": properties("203", "a", 5),
		"1/204/b.iso":               "1",
		"1/205/dnld1tmp_":           "1",
		"x/b.iso":                   "12",
		"x/template.properties":     properties("9", "b", 2),
	})
	want := []string{
		"1/203/a.iso account=1 template=203 name=a size=5",
		"1/204/b.iso account= template= name=b.iso size=-1",
		"- account=1 template=205 name=205 size=-1 iso-incomplete",
		"x/b.iso account= template= name=b size=2",
	}
	if diff := cmp.Diff(want, lines(t, root)); diff != "" {
		t.Errorf("copies (-want +got):\n%s", diff)
	}
	got, err := Template(t.Context(), root, "203", Options{})
	if err != nil || len(got) != 1 || got[0].Account != "1" {
		t.Errorf("Template: %+v, %v", got, err)
	}
}

func TestWalkErrors(t *testing.T) {
	root := exportTree(t)
	for _, tt := range []struct {
		root string
		code reason.Code
	}{
		{root + "/nowhere", reason.SourceMissing},
		{root + "/isos/gone.iso", reason.SourceMissing},
		{root + "/isos/debian.ISO", reason.SourceUnsupported},
		{root + "/isos/debian.ISO/x", reason.SourceUnsupported},
	} {
		if err := Walk(t.Context(), tt.root, Options{}, nil); reason.Of(err) != tt.code {
			t.Errorf("%s: %v, want %s", tt.root, err, tt.code)
		}
	}
	stop := errors.New("stop")
	calls := 0
	err := Walk(t.Context(), root, Options{}, func(Copy) error { calls++; return stop })
	if err != stop || calls != 1 {
		t.Errorf("each failed once, and was called %d times: %v", calls, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls = 0
	err = Walk(ctx, root, Options{}, func(Copy) error { calls++; cancel(); return nil })
	if reason.Of(err) != reason.Interrupted || !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("each was called %d times: %v", calls, err)
	}
}

func TestPlace(t *testing.T) {
	for path, want := range map[string]place{
		"/":                        elsewhere,
		"/tmpl":                    elsewhere,
		"/template/tmpl":           tmplDir,
		"/e/template/tmpl":         tmplDir,
		"/e/template/tmpl/1":       accountDir,
		"/e/template/tmpl/1/203":   templateDir,
		"/e/template/tmpl/1/203/4": elsewhere,
		"/e/template/tmpl/1/x":     elsewhere,
		"/e/template/tmpl/x/203":   elsewhere,
		"/e/tmpl/1/203":            elsewhere,
		"/1/2/3":                   elsewhere,
		"/template/tmpl/00000000000000001234567890/1": elsewhere,
	} {
		if got := placeOf(path); got != want {
			t.Errorf("placeOf(%q) = %d, want %d", path, got, want)
		}
	}
}

// A large store is walked with one listing, one read and one stat a template.
func TestManyTemplates(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 500
	}
	// Links to the same two files are made faster than files.
	const name = "1-1-setup"
	root := makeTree(t, t.TempDir(), map[string]string{"p": properties("1", name, 1), "i": "x"})
	for i := range n {
		dir := filepath.Join(root, "template/tmpl", fmt.Sprint(1+i%7), fmt.Sprint(200+i))
		err := errors.Join(os.MkdirAll(dir, 0o755),
			os.Link(filepath.Join(root, "p"), filepath.Join(dir, propertiesFile)),
			os.Link(filepath.Join(root, "i"), filepath.Join(dir, name+".iso")))
		if err != nil {
			t.Fatal(err)
		}
	}
	count := &counting{}
	found := 0
	start := time.Now()
	err := walk(t.Context(), count, root, Options{}, func(c Copy) error {
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		found++
		return nil
	})
	took := time.Since(start)
	if err != nil || found != n {
		t.Errorf("%d copies, %v, want %d", found, err, n)
	}
	if want := (counting{lists: n + 7 + 3, reads: n, stats: n}); *count != want {
		t.Errorf("calls were %+v, want %+v", *count, want)
	}
	t.Logf("%d templates in %v", n, took.Round(time.Millisecond))
	start = time.Now()
	if got, err := Template(t.Context(), root, "207", Options{}); err != nil || len(got) != 1 {
		t.Errorf("Template: %+v, %v", got, err)
	}
	t.Logf("one of them by its id in %v", time.Since(start).Round(time.Microsecond))
}

type counting struct {
	system
	lists, reads, stats int
}

func (c *counting) list(dir string) ([]fs.DirEntry, error) {
	c.lists++
	return c.system.list(dir)
}

func (c *counting) read(name string, limit int64) ([]byte, error) {
	c.reads++
	return c.system.read(name, limit)
}

func (c *counting) lstat(name string) (fs.FileInfo, error) {
	c.stats++
	return c.system.lstat(name)
}
