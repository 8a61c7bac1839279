package isofs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/isofs/isotest"
)

// TestFS holds the image to the contract of io/fs, through each set of names.
func TestFS(t *testing.T) {
	tree := func() *isotest.Node {
		return isotest.Dir("",
			isotest.Dir("etcd", isotest.File("etcd-linux-amd64.tar.gz", []byte("archive"))),
			isotest.Dir("k8s", isotest.File("kubeadm", make([]byte, 5000)), isotest.File("kubelet", nil)),
			isotest.Dir("empty"),
			isotest.File("network.yaml", []byte("kind: List\n")),
		)
	}
	rock := tree()
	rock.Children = append(rock.Children,
		isotest.Link("latest", "k8s/kubeadm"), isotest.Link("dangling", "../nowhere"),
		&isotest.Node{ID: "BIG.;1", Name: "big", Pieces: [][]byte{make([]byte, 4096), []byte("end")}})
	plain := tree()
	for _, tc := range []struct {
		spec isotest.Spec
		want isofs.Names
	}{
		{isotest.Spec{Root: rock, RockRidge: true}, isofs.RockRidge},
		{isotest.Spec{Root: rock, RockRidge: true, XA: true, BlockSize: 512}, isofs.RockRidge},
		{isotest.Spec{Root: plain, Joliet: isotest.ToJoliet(plain)}, isofs.Joliet},
		{isotest.Spec{Root: tree()}, isofs.Plain},
	} {
		t.Run(tc.want.String(), func(t *testing.T) {
			b := isotest.Build(t, tc.spec)
			img, err := isofs.Open(b, b.Size())
			if err != nil {
				t.Fatal(err)
			}
			if got := img.Names(); got != tc.want {
				t.Errorf("Names() = %v, want %v", got, tc.want)
			}
			want := []string{"k8s/kubeadm", "k8s/kubelet", "empty", "network.yaml"}
			if tc.want == isofs.RockRidge {
				want = append(want, "etcd/etcd-linux-amd64.tar.gz", "latest", "dangling", "big")
			}
			if err := fstest.TestFS(img, want...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFSOfGenisoimage does the same for an image as it is made in the field.
func TestFSOfGenisoimage(t *testing.T) {
	src := t.TempDir()
	files := []string{"etcd/etcd-linux-amd64.tar.gz", "k8s/kubeadm", "a/b/c/d/e/f/g/h/i/j/deep", "name with spaces", "ünïcode"}
	for _, f := range files {
		boundsWrite(t, filepath.Join(src, f), 3000)
	}
	if err := os.Symlink("etcd/etcd-linux-amd64.tar.gz", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-R", "-J", "-l"}, {"-R", "-D"}, {"-R", "-XA"}, {"-J", "-input-charset", "utf-8"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			r, size := boundsISO(t, src, args...)
			img, err := isofs.Open(r, size)
			if err != nil {
				t.Fatal(err)
			}
			want := append(files[:len(files):len(files)], "link")
			if img.Names() == isofs.Joliet {
				// genisoimage leaves out what only Rock Ridge can say.
				want = slices.DeleteFunc(want, func(name string) bool { return name == "link" || strings.HasSuffix(name, "/deep") })
			}
			if err := fstest.TestFS(img, want...); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReadLink(t *testing.T) {
	targets := []string{"a", "../k8s/kubeadm", "/etc/passwd", "./a/../b", "/"}
	root := isotest.Dir("", isotest.File("file", nil))
	for i, target := range targets {
		root.Children = append(root.Children, isotest.Link(fmt.Sprintf("link%d", i), target))
	}
	b := isotest.Build(t, isotest.Spec{Root: root, RockRidge: true})
	img, err := isofs.Open(b, b.Size())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range targets {
		target, err := fs.ReadLink(img, fmt.Sprintf("link%d", i))
		if err != nil {
			t.Error(err)
		}
		got = append(got, target)
	}
	if diff := cmp.Diff(targets, got); diff != "" {
		t.Errorf("ReadLink (-want +got):\n%s", diff)
	}
	if _, err := fs.ReadLink(img, "file"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("ReadLink(file) = %v, want fs.ErrInvalid", err)
	}
	var damage *isofs.Error
	if _, err := img.ReadFile("link0"); !errors.As(err, &damage) {
		t.Errorf("ReadFile(link0) = %v, want an *isofs.Error", err)
	}
}

// A damaged directory lists what can be read, and says that it is damaged.
func TestReadDirOfDamage(t *testing.T) {
	bad := isotest.File("bbb", nil)
	bad.Edit = func(r *isotest.Record) { r.IDLen = 255 }
	root := isotest.Dir("", isotest.File("aaa", nil), bad, isotest.File("ccc", nil), isotest.File("ccc", nil))
	b := isotest.Build(t, isotest.Spec{Root: root, RockRidge: true})
	img, err := isofs.Open(b, b.Size())
	if err != nil {
		t.Fatal(err)
	}
	list, err := img.ReadDir(".")
	var damage *isofs.Error
	if !errors.As(err, &damage) {
		t.Errorf("ReadDir = %v, want an *isofs.Error", err)
	}
	var got []string
	for _, e := range list {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff([]string{"aaa", "ccc"}, got); diff != "" {
		t.Errorf("ReadDir (-want +got):\n%s", diff)
	}
	d, err := img.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for {
		_, err = d.(fs.ReadDirFile).ReadDir(1)
		if err != nil {
			break
		}
	}
	if !errors.As(err, &damage) {
		t.Errorf("ReadDir(1) ends with %v, want an *isofs.Error", err)
	}
}

// goneReader is a device node that went away, or a URL that answers 404.
type goneReader struct{}

func (goneReader) ReadAt([]byte, int64) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: "/dev/sr0", Err: fs.ErrNotExist}
}

// "Could not look" must not pass for "not there", whatever the cause.
func TestErrorIsNeverNotExist(t *testing.T) {
	_, err := isofs.Open(goneReader{}, 1<<30)
	var damage *isofs.Error
	if !errors.As(err, &damage) {
		t.Fatalf("Open = %v, want an *isofs.Error", err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open = %v, which is fs.ErrNotExist", err)
	}
	if errors.Is(err, isofs.ErrNotISO) {
		t.Errorf("Open = %v, which is ErrNotISO", err)
	}
}
