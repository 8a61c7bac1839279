package isofs_test

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"

	"cks-etcd/internal/isofs/isotest"
)

// The record of the wanted file, or of its directory, is damaged.
func TestDamagedWanted(t *testing.T) {
	record := func(f func(*isotest.Record)) func(*tree) {
		return func(tr *tree) { tr.wanted.Edit = f }
	}
	dir := func(f func(*isotest.Record)) func(*tree) {
		return func(tr *tree) { tr.etcd.Edit = f }
	}
	sized := func(size uint32) func(*tree) {
		return func(tr *tree) {
			tr.etcd.Edit = func(r *isotest.Record) { r.Size = size }
			tr.etcd.Dot = tr.etcd.Edit
		}
	}
	runHostile(t, []hostileCase{
		{"file extent outside the image", record(func(r *isotest.Record) { r.Extent = 1 << 30 }), nil, unknown},
		{"file extent at the last block", record(func(r *isotest.Record) { r.Extent = 0xffffffff }), nil, unknown},
		{"file of 4 GiB", record(func(r *isotest.Record) { r.Size = 0xffffffff }), nil, unknown},
		{"file reaches past the end", record(func(r *isotest.Record) { r.Size = 1 << 20 }), nil, unknown},
		{"record of zero length", record(func(r *isotest.Record) { r.Len = 0 }), nil, unknown},
		{"record too short", record(func(r *isotest.Record) { r.Len = 20 }), nil, unknown},
		{"record without a name", record(func(r *isotest.Record) { r.Len = 33 }), nil, unknown},
		{"record past the sector", func(tr *tree) { // B69
			tr.atSectorEnd(tr.wanted)
			tr.wanted.Edit = func(r *isotest.Record) { r.Len = 255 }
		}, nil, unknown},
		{"record past the end of the directory", func(tr *tree) { // B69
			tr.fill()
			tr.etcd.Children = append(tr.etcd.Children[1:len(tr.etcd.Children)-2], tr.wanted)
			tr.wanted.Edit = func(r *isotest.Record) { r.Len = 255 }
		}, nil, notMissing},
		{"identifier longer than the record", record(func(r *isotest.Record) { r.IDLen = 255 }), nil, unknown},
		{"identifier of zero length", record(func(r *isotest.Record) { r.IDLen = 0 }), nil, notMissing},
		{"interleaved", record(func(r *isotest.Record) { r.UnitSize, r.GapSize = 1, 1 }), nil, notMissing},
		{"system use of zeros", record(func(r *isotest.Record) { clear(r.System) }), nil, notMissing},
		{"first entry of zero length", record(func(r *isotest.Record) { r.System[2] = 0 }), nil, unknown}, // B78
		{"first entry of three bytes", record(func(r *isotest.Record) { r.System[2] = 3 }), nil, unknown}, // B78
		{"entry past the record", record(func(r *isotest.Record) { r.System[2] = 255 }), nil, unknown},    // B78
		{"name entry without flags", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{isotest.Bytes('N', 'M', 4, 1)}
		}, nil, unknown},
		{"name entry cut", func(tr *tree) { // B78
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{isotest.Bytes('N', 'M', 28, 1, 0, 'e', 't', 'c', 'd')}
		}, nil, unknown},
		{"continuation outside the image", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{isotest.CEBlock(1<<30, 0, 50)}
		}, nil, unknown},
		{"continuation past its sector", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{isotest.CEBlock(20, 2040, 50)}
		}, nil, unknown},
		{"continuation of 4 GiB", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{isotest.CEBlock(20, 0, 0xffffffff)}
		}, nil, unknown},
		{"continuation at 4 GiB in its sector", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{isotest.CEBlock(20, 0xffffffff, 2)}
		}, nil, unknown},
		{"continuation loop", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{loop(nil)}
		}, nil, unknown},
		{"continuation loop that grows the name", func(tr *tree) {
			tr.wanted.Name = ""
			tr.wanted.SUSP = []isotest.Entry{loop([]isotest.Entry{isotest.NM(1, "etcd")})}
		}, nil, unknown},
		{"continuation is text", func(tr *tree) {
			tr.wanted.Name = ""
			text := &isotest.Area{Entries: []isotest.Entry{isotest.Bytes([]byte("this is no system use entry at all")...)}}
			tr.wanted.SUSP = []isotest.Entry{isotest.CE(text)}
		}, nil, unknown},
		{"more extents promised", record(func(r *isotest.Record) { r.Flags |= isotest.FlagMultiExtent }), nil, unknown}, // B74
		{"file marked as a directory", record(func(r *isotest.Record) { r.Flags |= isotest.FlagDirectory }), nil, unknown | refused},

		{"directory extent outside the image", dir(func(r *isotest.Record) { r.Extent = 1 << 30 }), nil, unknown},
		{"directory extent in the system area", dir(func(r *isotest.Record) { r.Extent = 3 }), nil, unknown},
		{"directory extent at block 0", dir(func(r *isotest.Record) { r.Extent = 0 }), nil, unknown},
		{"directory of zero length", sized(0), nil, unknown},
		{"directory of one byte", sized(1), nil, unknown},
		{"directory of 40 bytes", sized(40), nil, unknown},
		{"directory cut in its first sector", sized(150), nil, notMissing},
		{"directory of 4 GiB", sized(0xfffff800), nil, notMissing},
		{"directory of 4 GiB, absent", func(tr *tree) { tr.without(); sized(0xfffff800)(tr) }, nil, unknown},
		{"directory of 4 GiB of zeros, absent", func(tr *tree) { tr.without(); sized(0xfffff800)(tr) },
			func(_ *tree, img *isotest.Image) { img.Truncate(8 << 30) }, unknown | missing},
		// Linux takes a directory's length from its own first record.
		{"directory of zero length, in its parent only", dir(func(r *isotest.Record) { r.Size = 0 }), nil, notMissing},
		{"directory of 4 GiB, in its parent only", dir(func(r *isotest.Record) { r.Size = 0xfffff800 }), nil, notMissing},
		{"directory is another directory", dir(nil), func(tr *tree, img *isotest.Image) {
			// Its first record does not describe it (ECMA-119 6.8.2.2).
			block, _ := img.Extent(tr.k8s)
			put32(img, img.Record(tr.etcd, 0)+2, uint32(block/isotest.SectorSize))
		}, unknown},
		{"directory is a file", func(tr *tree) {
			tr.etcd.Edit = func(r *isotest.Record) { r.Point(tr.before) }
		}, nil, unknown},
		{"directory is zeros", nil, func(tr *tree, img *isotest.Image) {
			off, size := img.Extent(tr.etcd)
			img.WriteAt(make([]byte, size), off)
		}, unknown},
		{"directory is noise", nil, func(tr *tree, img *isotest.Image) {
			off, size := img.Extent(tr.etcd)
			img.WriteAt(bytes.Repeat([]byte{0xa5, 0x3c, 0x77}, int(size/3)), off)
		}, unknown},
		{"first sector of the directory is zeros", (*tree).fill, func(tr *tree, img *isotest.Image) {
			off, _ := img.Extent(tr.etcd)
			img.WriteAt(make([]byte, isotest.SectorSize), off)
		}, notMissing},
		{"last sector of the directory is zeros", (*tree).fill, func(tr *tree, img *isotest.Image) {
			off, size := img.Extent(tr.etcd)
			img.WriteAt(make([]byte, isotest.SectorSize), off+size-isotest.SectorSize)
		}, notMissing},
		{"directory marked as a file", dir(func(r *isotest.Record) { r.Flags = 0 }), nil, unknown | refused},
		{"directory of several extents", dir(func(r *isotest.Record) { r.Flags |= isotest.FlagMultiExtent }), nil, notMissing},
		{"directory is its parent", func(tr *tree) {
			tr.etcd.Edit = func(r *isotest.Record) { r.Point(tr.root) }
		}, nil, unknown},
		{"records cross sectors", func(tr *tree) { tr.fill(); tr.etcd.Straddle = true }, nil, notMissing},
		{"after zeros in its sector", func(tr *tree) { tr.wanted.Gap = 64 }, nil, notMissing},
	})
}

// loop is a continuation area that leads back to itself.
func loop(entries []isotest.Entry) isotest.Entry {
	a := &isotest.Area{}
	a.Entries = append(entries, isotest.CE(a))
	return isotest.CE(a)
}

func put32(img *isotest.Image, off int64, v uint32) {
	img.WriteAt([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}, off)
}

// Another record in the directory is damaged. The wanted file is found all
// the same, and when it is not there the answer is not "missing": the damaged
// record could have been it.
func TestDamagedNeighbour(t *testing.T) {
	named := func(name string) func(*tree) {
		return func(tr *tree) {
			tr.before.Name = ""
			tr.before.SUSP = []isotest.Entry{isotest.NM(0, name)}
		}
	}
	edited := func(f func(*isotest.Record)) func(*tree) {
		return func(tr *tree) { tr.before.Edit = f }
	}
	entries := func(e ...isotest.Entry) func(*tree) {
		return func(tr *tree) { tr.before.Name, tr.before.SUSP = "", e }
	}
	for _, tc := range []struct {
		name   string
		damage func(*tree)
	}{
		{"empty name", named("")},
		{"name .", named(".")},
		{"name ..", named("..")},
		{"name with a slash", named("a/b")},
		{"name that is a slash", named("/")},
		{"name with a NUL", named("etcd\x00")},
		{"name with a newline", named("etcd\nready")},
		{"name entry cut", entries(isotest.Bytes('N', 'M', 28, 1, 0, 'e'))},
		{"identifier of zero length", func(tr *tree) {
			tr.before.Name = ""
			tr.before.Edit = func(r *isotest.Record) { r.ID = nil }
		}},
		{"identifier longer than the record", edited(func(r *isotest.Record) { r.IDLen = 255 })},
		{"entry of zero length", edited(func(r *isotest.Record) { r.System[2] = 0 })},    // B78
		{"entry past the record", edited(func(r *isotest.Record) { r.System[2] = 255 })}, // B78
		{"continuation outside the image", entries(isotest.CEBlock(1<<30, 0, 50))},
		{"continuation of 4 GiB", entries(isotest.CEBlock(20, 0, 0xffffffff))},
		{"continuation loop", entries(loop(nil))},
		{"continuation loop that grows the name", entries(loop([]isotest.Entry{isotest.NM(1, strings.Repeat("e", 200))}))},
	} {
		runHostile(t, []hostileCase{
			{tc.name + ", present", tc.damage, nil, found},
			{tc.name + ", absent", func(tr *tree) { tr.without(); tc.damage(tr) }, nil, unknown},
		})
	}

	// The length of the record itself is wrong: the rest of its sector cannot
	// be told apart, the next sector can (ECMA-119 6.8.1.1).
	for _, tc := range []struct {
		name string
		edit func(*isotest.Record)
	}{
		{"record of zero length", func(r *isotest.Record) { r.Len = 0 }},
		{"record of one byte", func(r *isotest.Record) { r.Len = 1 }},
		{"record too short", func(r *isotest.Record) { r.Len = 20 }},
		{"record without a name", func(r *isotest.Record) { r.Len = 33 }},
	} {
		runHostile(t, []hostileCase{
			{tc.name + ", in the same sector", edited(tc.edit), nil, notMissing},
			{tc.name + ", in the next sector", func(tr *tree) { tr.fill(); edited(tc.edit)(tr) }, nil, found},
			{tc.name + ", absent", func(tr *tree) { tr.without(); edited(tc.edit)(tr) }, nil, unknown},
		})
	}
	// B69: a record that claims to go on past the end of its sector.
	past := func(tr *tree) {
		n := isotest.File("last-linux-amd64.tar.gz", nil)
		n.Edit = func(r *isotest.Record) { r.Len = 255 }
		tr.atSectorEnd(n)
	}
	runHostile(t, []hostileCase{
		{"record past the sector, in the next sector", past, nil, found},
		{"record past the sector, absent", func(tr *tree) { past(tr); tr.wanted.Name = "other" }, nil, unknown},
	})

	// Joliet names.
	for _, tc := range []struct{ name, id string }{
		{"slash", isotest.UCS2("a/b")},
		{"NUL", isotest.UCS2("etcd\x00")},
		{"newline", isotest.UCS2("a\nb")},
		{"point", isotest.UCS2(".")},
		{"two points", isotest.UCS2("..")},
		{"half a character", isotest.UCS2("etcd") + "x"},
	} {
		damage := func(tr *tree) {
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false
			tr.spec.Joliet.Children[0].Children[0].ID = tc.id
		}
		runHostile(t, []hostileCase{
			{"Joliet, " + tc.name + ", present", damage, nil, found},
			{"Joliet, " + tc.name + ", absent", func(tr *tree) { tr.without(); damage(tr) }, nil, unknown},
		})
	}

	// A file in the place of a directory: the path ends there, unless a record
	// that cannot be read may be that directory.
	file := func(tr *tree) { tr.root.Children[0] = isotest.File("etcd", []byte("no directory")) }
	runHostile(t, []hostileCase{
		{"file instead of the directory", file, nil, missing},
		{"file instead of the directory, damaged neighbour", func(tr *tree) {
			file(tr)
			tr.k8s.Edit = func(r *isotest.Record) { r.IDLen = 255 }
		}, nil, unknown},
	})

	// These neighbours are no candidates: their names are whole and others.
	runHostile(t, []hostileCase{
		{"extent outside the image", edited(func(r *isotest.Record) { r.Extent = 1 << 30 }), nil, found},
		{"claims 4 GiB", edited(func(r *isotest.Record) { r.Size = 0xffffffff }), nil, found},
		{"directory outside the image", func(tr *tree) {
			tr.k8s.Edit = func(r *isotest.Record) { r.Extent = 1 << 30 }
		}, nil, found},
		{"directory loop", func(tr *tree) {
			tr.k8s.Edit = func(r *isotest.Record) { r.Point(tr.root) }
		}, nil, found},
		{"directory that is the wanted one's", func(tr *tree) {
			tr.k8s.Edit = func(r *isotest.Record) { r.Point(tr.etcd) }
		}, nil, found},
		{"special file", func(tr *tree) { tr.before.Mode = 0o020644 }, nil, found},
	})
}

// Two records have the wanted name.
func TestDuplicates(t *testing.T) {
	same := func(tr *tree) {
		tr.after.Name = tr.wanted.Name
		tr.after.Data = bytes.Repeat([]byte("another one "), 10)
	}
	runHostile(t, []hostileCase{
		{"of the file", same, nil, unknown},
		{"of the file, in another sector", func(tr *tree) {
			tr.fill()
			same(tr)
			c := tr.etcd.Children
			c[0], c[len(c)-1] = c[len(c)-1], c[0]
		}, nil, unknown},
		{"of the file, damaged", func(tr *tree) {
			same(tr)
			tr.after.Edit = func(r *isotest.Record) { r.Extent = 1 << 30 }
		}, nil, unknown},
		{"of the directory", func(tr *tree) {
			tr.root.Children = append(tr.root.Children, isotest.Dir("etcd"))
		}, nil, unknown},
		{"file and directory", func(tr *tree) {
			d := isotest.Dir(tr.wanted.Name)
			tr.etcd.Children = append(tr.etcd.Children, d)
		}, nil, unknown},
		{"of a neighbour", func(tr *tree) { tr.after.Name = tr.before.Name }, nil, found},
	})
}

// A drive that cannot read a sector.
func TestUnreadable(t *testing.T) {
	tr := newTree(t)
	tr.fill()
	b := isotest.Build(t, tr.spec)
	etcd, etcdSize := b.Extent(tr.etcd)
	root, _ := b.Extent(tr.root)
	file, _ := b.Extent(tr.wanted)
	for _, tc := range []struct {
		name   string
		off    int64
		lookup string
		want   outcome
	}{
		{"primary descriptor", 16 * isotest.SectorSize, wantedPath, unknown},
		{"root directory", root, wantedPath, unknown},
		{"directory, sector of the file", etcd + etcdSize - isotest.SectorSize, wantedPath, unknown},
		{"directory, another sector", etcd, wantedPath, notMissing},
		{"directory, another sector, absent", etcd + isotest.SectorSize, "etcd/absent", unknown},
		{"file", file + isotest.SectorSize, wantedPath, unknown},
		{"elsewhere", file + 100*isotest.SectorSize, wantedPath, found},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &isotest.Faulty{R: b, Off: tc.off, Len: isotest.SectorSize, Err: syscall.EIO}
			bounded(t, func() {
				got, err := answer(r, b.Size(), tc.lookup, wantedData)
				if got&tc.want == 0 {
					t.Fatalf("answer = %v (%v), want %v", got, err, tc.want)
				}
				if got == unknown && !errors.Is(err, syscall.EIO) {
					t.Errorf("error %v does not keep its cause %v", err, syscall.EIO)
				}
				checkError(t, err)
				walk(t, r, b.Size())
			})
		})
	}
}

// Volume descriptors.
func TestDescriptors(t *testing.T) {
	const primary = 16 * isotest.SectorSize
	at := func(off int64, b ...byte) func(*tree, *isotest.Image) {
		return func(_ *tree, img *isotest.Image) { img.WriteAt(b, primary+off) }
	}
	runHostile(t, []hostileCase{
		{"zeros", nil, func(_ *tree, img *isotest.Image) { img.WriteAt(make([]byte, 4*isotest.SectorSize), primary) }, notISO},
		{"other standard", nil, at(1, []byte("CD002")...), notISO | unknown},
		{"no terminator", nil, func(_ *tree, img *isotest.Image) {
			img.WriteAt(make([]byte, isotest.SectorSize), primary+isotest.SectorSize)
		}, found | unknown},
		{"terminator only", nil, at(0, 255), notISO | unknown},
		{"block size 0", nil, at(128, 0, 0, 0, 0), unknown},
		{"block size 3", nil, at(128, 3, 0, 0, 3), unknown},
		{"block size 4096", nil, at(128, 0, 16, 16, 0), unknown},
		{"volume of no blocks", nil, at(80, make([]byte, 8)...), notMissing},
		{"volume of 8 TiB", nil, at(80, 255, 255, 255, 255, 255, 255, 255, 255), found},
		{"root of zero length, in the descriptor only", nil, at(156+10, make([]byte, 8)...), notMissing},
		{"root of zero length", func(tr *tree) {
			tr.root.Edit = func(r *isotest.Record) { r.Size = 0 }
			tr.root.Dot = tr.root.Edit
		}, nil, unknown},
		{"root outside the image", nil, at(156+2, 0, 0, 0, 0x40, 0x40, 0, 0, 0), unknown},
		{"root in the system area", nil, at(156+2, 1, 0, 0, 0, 0, 0, 0, 1), unknown},
		{"root of 4 GiB", nil, at(156+10, 0, 0xf8, 255, 255, 255, 255, 0xf8, 0), notMissing},
		{"root is not a directory", nil, at(156+25, 0), notMissing},
		{"root record of zero length", nil, at(156, 0), notMissing},
		{"Joliet root outside the image", func(tr *tree) {
			tr.spec.Joliet, tr.spec.RockRidge = isotest.ToJoliet(tr.root), false
			tr.spec.Joliet.Edit = func(r *isotest.Record) { r.Extent = 1 << 30 }
		}, nil, unknown},
		{"Joliet root outside the image, Rock Ridge intact", func(tr *tree) {
			tr.spec.Joliet = isotest.ToJoliet(tr.root)
			tr.spec.Joliet.Edit = func(r *isotest.Record) { r.Extent = 1 << 30 }
		}, nil, found},
		{"nothing but descriptors", nil, func(_ *tree, img *isotest.Image) { img.Truncate(18 * isotest.SectorSize) }, unknown},
		{"shorter than the system area", nil, func(_ *tree, img *isotest.Image) { img.Truncate(10_000) }, notISO | unknown},
		{"empty", nil, func(_ *tree, img *isotest.Image) { img.Truncate(0) }, notISO | unknown},
	})
}

// One changed byte in a directory record's fixed part, or in the first
// records of a directory, makes the answer unknown or leaves it right; it
// never makes it "missing".
func TestBitFlips(t *testing.T) {
	const fixed = 33 // bytes before the identifier (ECMA-119 9.1)
	tr := newTree(t)
	tr.fill()
	b := isotest.Build(t, tr.spec)
	etcd, _ := b.Extent(tr.etcd)
	places := map[string]int64{
		"wanted":        b.Record(tr.wanted, 0),
		"its directory": b.Record(tr.etcd, 0),
		"its neighbour": b.Record(tr.before, 0),
		"its .":         etcd,
	}
	for name, off := range places {
		t.Run(name, func(t *testing.T) {
			var old [1]byte
			for i := range int64(fixed) {
				b.ReadAt(old[:], off+i)
				for bit := range 8 {
					if i == 25 && 1<<bit == isotest.FlagAssociated {
						continue // hides the file, as Linux does
					}
					b.WriteAt([]byte{old[0] ^ 1<<bit}, off+i)
					if got, err := answer(b, b.Size(), wantedPath, wantedData); got == missing {
						t.Errorf("byte %d, bit %d: missing (%v)", i, bit, err)
					}
				}
				b.WriteAt(old[:], off+i)
			}
		})
	}
}
