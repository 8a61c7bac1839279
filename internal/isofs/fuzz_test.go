package isofs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	"cks-etcd/internal/isofs/isotest"
)

// metadata is an image without its system area, which reads as zeros: the
// mutations go where they matter.
type metadata []byte

func (m metadata) ReadAt(p []byte, off int64) (int, error) {
	zeros := int(min(max(systemArea*sectorSize-off, 0), int64(len(p))))
	clear(p[:zeros])
	off = max(off-systemArea*sectorSize, 0)
	if off >= int64(len(m)) && zeros < len(p) {
		return zeros, io.EOF
	}
	n := zeros + copy(p[zeros:], m[min(off, int64(len(m))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

const fuzzWanted = "etcd/etcd-linux-amd64.tar.gz"

// fuzzSeeds are small images that between them use everything that is parsed.
func fuzzSeeds(f *testing.F) []metadata {
	tree := func() *isotest.Node {
		return isotest.Dir("", isotest.Dir("etcd", isotest.File("etcd-linux-amd64.tar.gz", []byte("x"))), isotest.File("z", nil))
	}
	rich := tree()
	moved := isotest.Dir("deep", isotest.File("f", nil))
	moved.SUSP = []isotest.Entry{isotest.RE(), isotest.PL(rich)}
	stub := isotest.File("deep", nil)
	stub.SUSP = []isotest.Entry{isotest.CL(moved)}
	long := isotest.File("", nil)
	long.ID = "LONG.;1"
	area := &isotest.Area{Entries: []isotest.Entry{isotest.NM(0, "-tail"), isotest.SU("ST")}}
	long.SUSP = []isotest.Entry{isotest.NM(1, "head"), isotest.CE(area)}
	rich.Children = append(rich.Children,
		isotest.Link("link", "../a/./b"), stub, isotest.Dir("rr_moved", moved), long,
		&isotest.Node{ID: "BIG.;1", Name: "big", Pieces: [][]byte{make([]byte, 2048), []byte("y")}, SUSP: []isotest.Entry{isotest.ZF(9)}})
	plain := tree()
	var seeds []metadata
	for _, s := range []isotest.Spec{
		{Root: rich, RockRidge: true},
		{Root: tree(), RockRidge: true, XA: true},
		{Root: tree(), RockRidge: true, Skip: 3, NoER: true},
		{Root: tree(), RockRidge: true, NoSP: true, NoER: true, BlockSize: 512},
		{Root: plain, Joliet: isotest.ToJoliet(plain)},
	} {
		seeds = append(seeds, isotest.Build(f, s).Bytes()[systemArea*sectorSize:])
	}
	return seeds
}

// FuzzOpenLookup looks for a file in any image, walks it, and cuts it: where
// the whole image has the file, no part of it says that it is missing.
func FuzzOpenLookup(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		f.Add([]byte(seed), uint16(len(seed)/2))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		if len(data) > 1<<20 {
			return
		}
		whole := lookupIn(t, data)
		walkIn(t, data)
		if int(cut) < len(data) {
			part := lookupIn(t, data[:cut])
			if whole == nil && errors.Is(part, fs.ErrNotExist) {
				t.Errorf("found in the whole image, but cut at %d: %v", cut, part)
			}
		}
	})
}

// lookupIn opens, looks up and reads, and holds the errors to their contract.
func lookupIn(t *testing.T, m metadata) error {
	img, err := Open(m, int64(len(m))+systemArea*sectorSize)
	if err != nil {
		if _, ok := errors.AsType[*Error](err); ok == errors.Is(err, ErrNotISO) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open = %v, want either an *Error or ErrNotISO", err)
		}
		return err
	}
	file, err := img.Lookup(fuzzWanted)
	if err != nil {
		if _, ok := errors.AsType[*Error](err); ok == errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup = %v, want either an *Error or fs.ErrNotExist", err)
		}
		return err
	}
	check := file.CheckExtents()
	n, err := io.Copy(io.Discard, io.LimitReader(file.Reader(), 1<<16))
	if check == nil && file.mode.IsRegular() && !file.zisofs && (err != nil || n != min(file.Size(), 1<<16)) {
		t.Errorf("read %d bytes of %d: %v", n, file.Size(), err)
	}
	return nil
}

// walkIn visits an image in a limited number of steps.
func walkIn(t *testing.T, m metadata) {
	img, err := Open(m, -1)
	if err != nil {
		return
	}
	const maxSteps = 300
	steps := 0
	_ = fs.WalkDir(img, ".", func(name string, d fs.DirEntry, err error) error {
		if steps++; steps > maxSteps {
			return fs.SkipAll
		}
		if d != nil {
			if info, err := d.Info(); err != nil || info.Name() != d.Name() {
				t.Errorf("%q: Info = %v, %v", name, info, err)
			}
		}
		return nil
	})
}

// FuzzSystemUse parses any system use field with any continuation areas.
func FuzzSystemUse(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		for off := 0; off+sectorSize <= len(seed); off += sectorSize {
			sector := seed[off : off+sectorSize]
			for at := 0; at < sectorSize && sector[at] != 0; {
				rec, wrong := parseRecord(sector[at:])
				if wrong != "" {
					break
				}
				f.Add(bytes.Clone(rec.system), bytes.Clone(seed[len(seed)-sectorSize:]))
				at += rec.length
			}
		}
	}
	f.Fuzz(func(t *testing.T, field, area []byte) {
		hops := 0
		var u systemUse
		u.parse(field, func(_, offset, size uint32) ([]byte, error) {
			hops++
			end := uint64(offset) + uint64(size)
			if end > uint64(len(area)) {
				return nil, errors.New("outside")
			}
			return area[offset:end], nil
		})
		if hops > maxContinuations {
			t.Errorf("%d continuation areas were read", hops)
		}
		if len(u.name) >= maxName {
			t.Errorf("a name has %d bytes", len(u.name))
		}
		if len(u.link) > maxLink+256 {
			t.Errorf("a link has %d bytes", len(u.link))
		}
		again := u
		again.reset()
		again.parse(nil, nil)
		if again.wrong != nil || again.hasName || len(again.name) > 0 {
			t.Error("reset does not forget")
		}
	})
}

// FuzzNames: any identifier gives a name that is good or is refused.
func FuzzNames(f *testing.F) {
	for _, id := range []string{"ETCD.;1", "A.B;1", "A;2", ".;1", ";1", "a/b", "\x00e\x00t\x00;\x001", "\xd8\x3d\xde\x00", "\xd8\x3d"} {
		f.Add([]byte(id))
	}
	f.Fuzz(func(t *testing.T, id []byte) {
		if name := appendPlain(nil, id); len(name) > len(id) || bytes.ContainsAny(name, "ABCXYZ;/") {
			t.Errorf("appendPlain(%q) = %q", id, name)
		}
		name, err := appendJoliet([]byte("before"), id)
		if rest, ok := bytes.CutPrefix(name, []byte("before")); !ok {
			t.Errorf("appendJoliet(%q) = %q, which lost what was there", id, name)
		} else if err == nil && checkName(rest) == nil && !Joliet.matcher(string(rest))(rest) {
			t.Errorf("%q does not match itself", rest)
		}
	})
}
