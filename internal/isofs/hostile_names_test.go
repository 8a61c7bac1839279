package isofs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/isofs/isotest"
)

// Not damaged, or damaged where it does not matter.
func TestIntact(t *testing.T) {
	runIntact(t, []hostileCase{
		{"ordinary", nil, nil, found},
		{"without the file", (*tree).without, nil, missing},
		{"without the directory", func(tr *tree) { tr.root.Children = []*isotest.Node{tr.k8s} }, nil, missing},
		{"empty root", func(tr *tree) { tr.root.Children = nil }, nil, missing},
		{"directory of several sectors", (*tree).fill, nil, found},
		{"trailing garbage", func(tr *tree) { tr.spec.Trailer = bytes.Repeat([]byte{0xa5}, 5000) }, nil, found},
		{"cut right after the last byte", func(tr *tree) {
			// A device's size is not always a multiple of the sector
			// (https://github.com/diskfs/go-diskfs/issues/103).
			tr.wanted.At = 100
		}, func(tr *tree, img *isotest.Image) {
			off, size := img.Extent(tr.wanted)
			img.Truncate(off + size)
		}, found},
		{"one byte short", func(tr *tree) { tr.wanted.At = 100 }, func(tr *tree, img *isotest.Image) {
			off, size := img.Extent(tr.wanted)
			img.Truncate(off + size - 1)
		}, unknown},
		{"blocks of 512 bytes", func(tr *tree) { tr.spec.BlockSize = 512 }, nil, found},
		{"blocks of 1024 bytes", func(tr *tree) { tr.spec.BlockSize = 1024 }, nil, found},
		{"beyond 4 GiB", func(tr *tree) { tr.etcd.At, tr.wanted.At = 3_000_000, 3_100_000 }, nil, found},
		{"beyond 4 TiB", func(tr *tree) { tr.etcd.At, tr.wanted.At = 1<<31+5, 1<<32-10 }, nil, found},
		{"boot record and unknown descriptors", func(tr *tree) {
			boot := append([]byte{0}, "CD001\x01EL TORITO SPECIFICATION"...)
			enhanced := append([]byte{2}, "CD001\x02"...) // ISO 9660:1999, no Joliet escape
			tr.spec.Descriptors = [][]byte{boot, enhanced, []byte("\x00BEA01\x01"), []byte("\x00NSR02\x01"), []byte("\x00TEA01\x01")}
		}, nil, found},
		{"big-endian copies differ", func(tr *tree) {
			wrong := uint32(0xdeadbeef)
			tr.wanted.Edit = func(r *isotest.Record) { r.MSBExtent, r.MSBSize = &wrong, &wrong }
		}, nil, notMissing},
		{"extended attributes before the data", func(tr *tree) {
			tr.wanted.Data = append(make([]byte, isotest.SectorSize), wantedData...)
			tr.wanted.Edit = func(r *isotest.Record) { r.XattrLen, r.Size = 1, uint32(len(wantedData)) }
		}, nil, found},
		{"associated file of the same name", func(tr *tree) {
			// Linux hides associated files.
			tr.before.Name = tr.wanted.Name
			tr.before.Edit = func(r *isotest.Record) { r.Flags |= isotest.FlagAssociated }
		}, nil, found},
		{"only an associated file", func(tr *tree) {
			tr.wanted.Edit = func(r *isotest.Record) { r.Flags |= isotest.FlagAssociated }
		}, nil, missing},
		{"existence bit set", func(tr *tree) {
			// Linux shows files whose existence bit is set unless told otherwise.
			tr.wanted.Edit = func(r *isotest.Record) { r.Flags |= isotest.FlagHidden }
		}, nil, found},
		{"a file in the directory's place", func(tr *tree) {
			tr.root.Children = []*isotest.Node{isotest.File("etcd", []byte("x"))}
		}, nil, missing | refused | unknown},
		{"empty file", func(tr *tree) { tr.before.Edit = func(r *isotest.Record) { r.Extent, r.Size = 0, 0 } }, nil, found},
		{"neighbour without extent", func(tr *tree) {
			tr.before.Edit = func(r *isotest.Record) { r.Extent, r.Size = 0xffffffff, 0 }
		}, nil, found},
	})
}

// Names: Rock Ridge, Joliet and plain ones.
func TestNames(t *testing.T) {
	split := func(tr *tree, parts ...string) []isotest.Entry {
		var e []isotest.Entry
		for i, p := range parts {
			var more byte
			if i < len(parts)-1 {
				more = 1
			}
			e = append(e, isotest.NM(more, p))
		}
		tr.wanted.Name = ""
		return e
	}
	er := func(id string) func(*tree) { return func(tr *tree) { tr.spec.ERID = id } }
	runIntact(t, []hostileCase{
		{"RRIP_1991A", er("RRIP_1991A"), nil, found},
		{"IEEE_P1282", er("IEEE_P1282"), nil, found},
		{"IEEE_1282", er("IEEE_1282"), nil, found},
		{"without ER", func(tr *tree) { tr.spec.NoER = true }, nil, found},
		{"without SP and ER", func(tr *tree) { tr.spec.NoER, tr.spec.NoSP = true, true }, nil, found},
		{"skip bytes", func(tr *tree) { tr.spec.Skip = 5 }, nil, found},                              // B72
		{"skip bytes, absent", func(tr *tree) { tr.spec.Skip = 5; tr.without() }, nil, missing},      // B72
		{"XA", func(tr *tree) { tr.spec.XA = true }, nil, found},                                     //
		{"XA, absent", func(tr *tree) { tr.spec.XA = true; tr.without() }, nil, missing},             //
		{"PX of 44 bytes", func(tr *tree) { tr.wanted.PX44, tr.etcd.PX44 = true, true }, nil, found}, // B73
		{"name of three entries", func(tr *tree) {
			tr.wanted.SUSP = split(tr, "etcd-", "linux-amd64", ".tar.gz")
		}, nil, found},
		{"name in a continuation area", func(tr *tree) { // B72
			e := split(tr, "etcd-", "linux-amd64", ".tar.gz")
			tr.wanted.SUSP = []isotest.Entry{e[0], isotest.CE(&isotest.Area{Entries: e[1:], Offset: 100})}
		}, nil, found},
		{"name over two continuation areas", func(tr *tree) { // B72
			e := split(tr, "etcd-", "linux-amd64", ".tar.gz")
			second := &isotest.Area{Entries: e[2:]}
			first := &isotest.Area{Entries: []isotest.Entry{e[1], isotest.CE(second)}}
			tr.wanted.SUSP = []isotest.Entry{isotest.CE(first), e[0]} // CE first: SUSP 5.1 allows any place
		}, nil, found},
		{"RRIP 1.12 names in the first records", func(tr *tree) {
			// NM of "." and ".." has a flag and no name (RRIP 4.1.4).
			tr.etcd.DotSUSP = []isotest.Entry{isotest.NM(2, "")}
			tr.root.DotSUSP = []isotest.Entry{isotest.NM(2, "")}
		}, nil, found},
		{"RRIP 1.12 as xorriso writes it", func(tr *tree) {
			tr.spec.NoER = true
			er := &isotest.Area{Entries: []isotest.Entry{isotest.ER("IEEE_1282")}}
			tr.root.DotSUSP = []isotest.Entry{isotest.NM(2, ""), isotest.CE(er)}
			tr.root.PX44, tr.etcd.PX44, tr.wanted.PX44 = true, true, true
		}, nil, found},
		{"first record without attributes", func(tr *tree) {
			tr.etcd.Dot = func(r *isotest.Record) { r.System = nil }
			tr.etcd.DotDot = tr.etcd.Dot
		}, nil, found},
		{"second record is the directory itself", func(tr *tree) {
			// As xorriso records it in Joliet trees.
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false
			j := tr.spec.Joliet.Children[0]
			j.DotDot = func(r *isotest.Record) { r.Point(j) }
		}, nil, found},
		{"ST ends the entries", func(tr *tree) {
			tr.wanted.SUSP = []isotest.Entry{isotest.SU("ST"), isotest.Bytes(1, 2, 3, 0)}
		}, nil, found | unknown},
		{"unknown entries", func(tr *tree) {
			tr.wanted.SUSP = []isotest.Entry{isotest.SU("QQ", 1, 2, 3), isotest.SU("AA"), isotest.SU("PD", 0, 0)}
		}, nil, found},
		{"Rock Ridge before Joliet", func(tr *tree) { // B75
			tr.spec.Joliet = isotest.ToJoliet(isotest.Dir("", isotest.Dir("other")))
		}, nil, found},
		{"Joliet only", func(tr *tree) {
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false
		}, nil, found},
		{"Joliet, other case", func(tr *tree) {
			// Linux compares Joliet names without regard to case.
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false
			tr.spec.Joliet.Children[0].Children[1].ID = isotest.UCS2("ETCD-Linux-AMD64.tar.gz")
		}, nil, found},
		{"Joliet with versions", func(tr *tree) {
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false
			for _, c := range tr.spec.Joliet.Children[0].Children {
				c.ID += isotest.UCS2(";1")
			}
		}, nil, found},
		{"Joliet, absent", func(tr *tree) {
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(isotest.Dir("", isotest.Dir("etcd"))), false
		}, nil, missing},
		{"Joliet before Rock Ridge without ER", func(tr *tree) {
			// Linux takes Rock Ridge first only when ER names an extension.
			tr.spec.NoER = true
			tr.spec.Joliet = isotest.ToJoliet(tr.root)
			tr.without()
		}, nil, found},
		{"Joliet because Rock Ridge's root is empty", func(tr *tree) {
			tr.spec.Joliet = isotest.ToJoliet(tr.root)
			tr.root.Children = nil
			for _, c := range tr.spec.Joliet.Children[0].Children {
				c.Same, c.Data = nil, wantedData
			}
		}, nil, found},
		{"plain, version 1", plain("ETCD-LINUX-AMD64.TAR.GZ;1"), nil, found}, // B76
		{"plain, no version", plain("ETCD-LINUX-AMD64.TAR.GZ"), nil, found},
		{"plain, lower case", plain("etcd-linux-amd64.tar.gz"), nil, found},
		{"plain, version 2", plain("ETCD-LINUX-AMD64.TAR.GZ;2"), nil, missing}, // Linux shows "….gz.2"
		{"plain, versions 1 and 2", func(tr *tree) {
			plain("ETCD-LINUX-AMD64.TAR.GZ;1")(tr)
			tr.after.ID = "ETCD-LINUX-AMD64.TAR.GZ;2"
		}, nil, found},
		{"plain, mangled", plain("ETCD_LINUX_AMD64_TAR.GZ;1"), nil, missing},
	})
}

func plain(id string) func(*tree) {
	return func(tr *tree) {
		tr.spec.RockRidge = false
		tr.wanted.ID = id
	}
}

// Linux's names of an image that has neither Rock Ridge nor Joliet (B76).
func TestPlainNames(t *testing.T) {
	names := map[string]string{ // identifier: name
		"README.;1":   "readme",
		"ETCD.GZ;1":   "etcd.gz",
		"NODOT":       "nodot",
		"NOEXT;1":     "noext",
		"TWO.GZ;2":    "two.gz.2",
		"Mixed.Txt;1": "mixed.txt",
	}
	root := isotest.Dir("")
	for id := range names {
		root.Children = append(root.Children, &isotest.Node{ID: id, Data: []byte(id)})
	}
	b := isotest.Build(t, isotest.Spec{Root: root})
	img, err := isofs.Open(b, b.Size())
	if err != nil {
		t.Fatal(err)
	}
	if img.Names() != isofs.Plain {
		t.Errorf("Names() = %v, want %v", img.Names(), isofs.Plain)
	}
	for id, name := range names {
		got, err := fs.ReadFile(img, name)
		if err != nil || string(got) != id {
			t.Errorf("ReadFile(%q) = %q, %v, want %q", name, got, err, id)
		}
	}
}

// The tree that is chosen is the one a Linux node shows (B75).
func TestNamesChosen(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(*tree)
		want   isofs.Names
	}{
		{"Rock Ridge", func(*tree) {}, isofs.RockRidge},
		{"Rock Ridge and Joliet", func(tr *tree) { tr.spec.Joliet = isotest.ToJoliet(tr.root) }, isofs.RockRidge},
		{"Joliet", func(tr *tree) { tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false }, isofs.Joliet},
		{"no ER, Joliet", func(tr *tree) { tr.spec.Joliet, tr.spec.NoER = isotest.ToJoliet(tr.root), true }, isofs.Joliet},
		{"plain", func(tr *tree) { tr.spec.RockRidge = false }, isofs.Plain},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			tc.damage(tr)
			b := isotest.Build(t, tr.spec)
			img, err := isofs.Open(b, b.Size())
			if err != nil {
				t.Fatal(err)
			}
			if got := img.Names(); got != tc.want {
				t.Errorf("Names() = %v, want %v", got, tc.want)
			}
			if got := img.VolumeID(); got != "CDROM" {
				t.Errorf("VolumeID() = %q, want %q", got, "CDROM")
			}
		})
	}
}

// B74: files of several extents.
func TestMultiExtent(t *testing.T) {
	three := func(tr *tree) {
		// Every part but the last fills its blocks (ECMA-119 6.4.3).
		tr.wanted.Pieces = [][]byte{wantedData[:2048], wantedData[2048:2048], wantedData[2048:]}
	}
	two := func(tr *tree) { tr.wanted.Pieces = [][]byte{wantedData[:2048], wantedData[2048:]} }
	second := func(f func(*isotest.Record)) func(*tree) {
		return func(tr *tree) {
			two(tr)
			tr.wanted.Edit = func(r *isotest.Record) {
				if r.Piece == 1 {
					f(r)
				}
			}
		}
	}
	runHostile(t, []hostileCase{
		{"two extents", two, nil, found},
		{"an empty one between", three, nil, notMissing},
		{"a neighbour of two extents", func(tr *tree) {
			tr.before.Pieces = [][]byte{make([]byte, 2048), []byte("x")}
		}, nil, found},
		{"over a sector of the directory", func(tr *tree) {
			tr.fill()
			two(tr)
			// The first record ends one sector of the directory.
			tr.etcd.Children[len(tr.etcd.Children)-2].Gap = 0
		}, nil, found},
		{"extents apart", func(tr *tree) {
			two(tr)
			tr.wanted.Edit = func(r *isotest.Record) {}
		}, nil, found},
		{"last part outside the image", second(func(r *isotest.Record) { r.Extent = 1 << 30 }), nil, unknown},
		{"last part missing", second(func(r *isotest.Record) { r.Flags |= isotest.FlagMultiExtent }), nil, unknown},
		{"last part of another name", second(func(r *isotest.Record) { copy(r.ID, "XXXX") }), nil, unknown},
		{"last part a directory", second(func(r *isotest.Record) { r.Flags |= isotest.FlagDirectory }), nil, unknown},
		{"neighbour without its last part", func(tr *tree) {
			tr.before.Edit = func(r *isotest.Record) { r.Flags |= isotest.FlagMultiExtent }
		}, nil, notMissing},
	})

	t.Run("100 GiB in one-sector records", func(t *testing.T) {
		tr := newTree(t)
		tr.before.Pieces = make([][]byte, 26)
		tr.before.Edit = func(r *isotest.Record) { r.Extent, r.Size = 100, 0xfffff800 }
		tr.before.ID = "B.;1"
		tr.before.Name = "big"
		img := isotest.Build(t, tr.spec)
		img.Truncate(5 << 30)
		bounded(t, func() {
			if got, err := answer(img, img.Size(), wantedPath, wantedData); got != found {
				t.Errorf("answer = %v (%v), want found", got, err)
			}
			o, err := isofs.Open(img, img.Size())
			if err != nil {
				t.Fatal(err)
			}
			f, err := o.Lookup("etcd/big")
			if err != nil {
				t.Fatal(err)
			}
			if got, want := f.Size(), int64(26)*0xfffff800; got != want {
				t.Errorf("Size() = %d, want %d", got, want)
			}
			// The last byte is where it is said to be.
			if _, err := f.Reader().ReadAt(make([]byte, 1), f.Size()-1); err != nil && err != io.EOF {
				t.Errorf("ReadAt(last byte): %v", err)
			}
		})
	})
}

// Relocated directories (RRIP 4.1.5) and symbolic links.
func TestRelocation(t *testing.T) {
	// The wanted directory is stored under rr_moved, and a record in the root
	// stands for it.
	relocated := func(tr *tree) (stub, moved *isotest.Node) {
		tr.etcd.SUSP = append(tr.etcd.SUSP, isotest.RE())
		tr.etcd.Name = "etcd"
		moved = isotest.Dir("rr_moved", tr.etcd)
		stub = isotest.File("etcd", nil)
		stub.Mode = 0o040755
		stub.SUSP = []isotest.Entry{isotest.CL(tr.etcd)}
		stub.Edit = func(r *isotest.Record) { r.Extent = 0 }
		tr.root.Children = []*isotest.Node{stub, tr.k8s, moved}
		return stub, moved
	}
	runHostile(t, []hostileCase{
		{"followed", func(tr *tree) { relocated(tr) }, nil, found},
		{"followed, absent", func(tr *tree) { relocated(tr); tr.without() }, nil, missing},
		{"child outside the image", func(tr *tree) {
			stub, _ := relocated(tr)
			stub.SUSP = []isotest.Entry{isotest.CLBlock(1 << 30)}
		}, nil, unknown},
		{"child in the system area", func(tr *tree) {
			stub, _ := relocated(tr)
			stub.SUSP = []isotest.Entry{isotest.CLBlock(0)}
		}, nil, unknown},
		{"child is a file", func(tr *tree) {
			stub, _ := relocated(tr)
			stub.SUSP = []isotest.Entry{isotest.CL(tr.wanted)}
		}, nil, unknown},
		{"child is its parent", func(tr *tree) {
			stub, _ := relocated(tr)
			stub.SUSP = []isotest.Entry{isotest.CL(tr.root)}
		}, nil, unknown},
		{"entry too short", func(tr *tree) {
			stub, _ := relocated(tr)
			stub.SUSP = []isotest.Entry{isotest.Bytes('C', 'L', 8, 1, 1, 2, 3, 4)}
		}, nil, unknown},
		{"the file itself is a child link", func(tr *tree) {
			tr.wanted.SUSP = []isotest.Entry{isotest.CL(tr.etcd)}
		}, nil, unknown | refused},
		{"neighbour links to its parent", func(tr *tree) {
			tr.before.SUSP = []isotest.Entry{isotest.CL(tr.etcd)}
		}, nil, found},
	})

	t.Run("hidden where it is stored", func(t *testing.T) {
		tr := newTree(t)
		relocated(tr)
		b := isotest.Build(t, tr.spec)
		img, err := isofs.Open(b, b.Size())
		if err != nil {
			t.Fatal(err)
		}
		if list, err := fs.ReadDir(img, "rr_moved"); err != nil || len(list) != 0 {
			t.Errorf("ReadDir(rr_moved) = %v, %v, want nothing", list, err)
		}
		if _, err := img.Lookup("rr_moved/etcd"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup(rr_moved/etcd) = %v, want fs.ErrNotExist", err)
		}
		if f, err := img.Lookup("etcd"); err != nil || !f.IsDir() {
			t.Errorf("Lookup(etcd) = %v, %v, want a directory", f, err)
		}
	})

	t.Run("symbolic link", func(t *testing.T) {
		tr := newTree(t)
		tr.wanted.Link, tr.wanted.Data = "../k8s/kubeadm", nil
		tr.etcd.Children = append(tr.etcd.Children, isotest.Link("root", "/etc/passwd"))
		b := isotest.Build(t, tr.spec)
		img, err := isofs.Open(b, b.Size())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{wantedPath, "etcd/root"} {
			f, err := img.Lookup(name)
			if err != nil {
				t.Errorf("Lookup(%s): %v", name, err)
				continue
			}
			if f.Mode().Type() != fs.ModeSymlink {
				t.Errorf("Lookup(%s).Mode() = %v, want a symbolic link", name, f.Mode())
			}
		}
		if f, err := img.Lookup("etcd/root/x"); err == nil {
			t.Errorf("Lookup(etcd/root/x) = %v, want an error: links are not followed", f)
		}
	})
}

// zisofs: a Linux node shows the uncompressed file, so the compressed bytes
// must never pass for it.
func TestCompressedIsNotTheFile(t *testing.T) {
	tr := newTree(t)
	raw := append([]byte("\x37\xe4\x53\x96\xc9\xdb\xd6\x07"), make([]byte, 100)...)
	tr.wanted.Data = raw
	tr.wanted.SUSP = []isotest.Entry{isotest.ZF(123456)}
	b := isotest.Build(t, tr.spec)
	bounded(t, func() {
		if got, err := answer(b, b.Size(), wantedPath, raw); got == found || got == missing {
			t.Errorf("answer = %v (%v), want neither the compressed bytes nor missing", got, err)
		}
	})
}

func TestInvalidPaths(t *testing.T) {
	tr := newTree(t)
	b := isotest.Build(t, tr.spec)
	img, err := isofs.Open(b, b.Size())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "/etcd", "etcd/", "./etcd", "etcd/../k8s", "etcd//x"} {
		if _, err := img.Lookup(name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Lookup(%q) = %v, want fs.ErrInvalid", name, err)
		}
	}
	if f, err := img.Lookup("."); err != nil || !f.IsDir() {
		t.Errorf("Lookup(.) = %v, %v, want the root", f, err)
	}
}
