package inspect_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

const sector = 2048

// Never a false no: an ordinary ISO with etcd is damaged at random, and the
// answer is included or unknown. It is missing only where the damage gave a
// record on the way another valid name, and broken only where what a node would
// read there is no gzip stream any more. Both are decided by decoding the
// damaged bytes again, without package isofs.
func TestNeverAFalseNo(t *testing.T) {
	noise := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{2}).Read(noise)
	tree := kubernetesTree(
		inspect.EtcdArchive, string(append(archivetest.Archive("3.5.21", "amd64"), noise...)),
		"docker/large.tar", string(noise))
	script := []string{"-J", "-R", "-l"}
	for _, tt := range []struct {
		name    string
		tool    string
		args    []string
		joliet  bool
		damages int
	}{
		{"genisoimage", "genisoimage", script, false, 10_000},
		{"xorriso", "xorrisofs", script, false, 2_000},
		{"genisoimage, Rock Ridge alone", "genisoimage", []string{"-R"}, false, 2_000},
		{"genisoimage, Joliet alone", "genisoimage", []string{"-J"}, true, 2_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := buildISO(t, tt.tool, tt.args, tree)
			r := readISO(t, file)
			base := make([]byte, r.Size())
			r.ReadAt(base, 0)
			o := newOracle(t, base, tt.joliet)
			if testing.Short() {
				tt.damages /= 10
			}
			counts := map[string]int{}
			rng := rand.New(rand.NewPCG(14, uint64(tt.damages)))
			for range tt.damages {
				d := o.damage(rng)
				_, got := inspect.Check(t.Context(), d, d.size, inspect.Request{})
				promised(t, got[0])
				kind, wrong := o.judge(d, got[0])
				counts[kind]++
				if wrong != "" {
					t.Errorf("%s: %s: %s (%v)", d, wrong, got[0].Value, got[0].Err)
				}
			}
			var lines []string
			for kind, n := range counts {
				lines = append(lines, fmt.Sprintf("%6d %s", n, kind))
			}
			slices.Sort(lines)
			t.Logf("%d damages:\n%s", tt.damages, strings.Join(lines, "\n"))
			for _, kind := range []string{"included", "unknown"} {
				if counts[kind] < tt.damages/10 {
					t.Errorf("%d of %d are %s: the damages are not worth much", counts[kind], tt.damages, kind)
				}
			}
		})
	}
}

// A span is a run of bytes of the image.
type span struct{ off, size int64 }

func (s span) overlaps(o span) bool { return s.off < o.off+o.size && o.off < s.off+s.size }

// An oracle knows where in an intact image everything lies that leads to the
// archive.
type oracle struct {
	base   []byte
	joliet bool
	steps  [2]span // the directory records of etcd and of the archive
	file   span    // the archive
	meta   []span  // descriptors, and the directories on the way, of all trees
}

func newOracle(t *testing.T, base []byte, joliet bool) *oracle {
	t.Helper()
	o := &oracle{base: base, joliet: joliet}
	last := int64(16)
	for ; base[last*sector] != 255; last++ {
		typ, at := base[last*sector], last*sector
		if typ != 1 && typ != 2 {
			continue
		}
		wanted := typ == 2 == joliet
		root := extentOf(base[at+156:])
		o.meta = append(o.meta, root)
		if area, ok := continuation(base[root.off:]); ok {
			o.meta = append(o.meta, area) // of the root's first record: ER
		}
		for _, dir := range o.list(root, typ == 2) {
			if dir.name != "etcd" && !strings.EqualFold(dir.name, "ETCD") {
				continue
			}
			etcd := extentOf(base[dir.at.off:])
			o.meta = append(o.meta, etcd)
			for _, f := range o.list(etcd, typ == 2) {
				if wanted && f.name == "etcd-linux-amd64.tar.gz" {
					o.steps = [2]span{dir.at, f.at}
					o.file = extentOf(base[f.at.off:])
				}
			}
		}
	}
	o.meta = append(o.meta, span{16 * sector, (last - 15) * sector})
	if o.file.size == 0 || !bytes.HasPrefix(base[o.file.off:], []byte("\x1f\x8b")) {
		t.Fatalf("the archive was not found: %+v", o)
	}
	return o
}

type named struct {
	name string
	at   span
}

// list returns the named records of an intact directory.
func (o *oracle) list(dir span, joliet bool) []named {
	var list []named
	for off := dir.off; off < dir.off+dir.size; {
		n := int64(o.base[off])
		if n == 0 {
			off = (off/sector + 1) * sector
			continue
		}
		if name, ok := recordName(o.base[off:off+n], joliet); ok {
			list = append(list, named{name, span{off, n}})
		}
		off += n
	}
	return list
}

// extentOf returns what a directory record leads to (ECMA-119 9.1.3 and 9.1.4), the little-endian numbers, as Linux does.
func extentOf(record []byte) span {
	block := int64(binary.LittleEndian.Uint32(record[2:])) + int64(record[1]) // behind its attributes (9.1.2)
	return span{block * sector, int64(binary.LittleEndian.Uint32(record[10:]))}
}

// systemUse returns the system use field of a record (ECMA-119 9.1.13).
func systemUse(record []byte) ([]byte, bool) {
	at := 33 + int(record[32])
	at += at % 2
	if int(record[0]) > len(record) || at > int(record[0]) {
		return nil, false
	}
	return record[at:record[0]], true
}

// continuation returns where the CE entry of a record leads (SUSP 5.1).
func continuation(record []byte) (span, bool) {
	su, _ := systemUse(record)
	for len(su) >= 4 && int(su[2]) >= 4 && int(su[2]) <= len(su) {
		if string(su[:2]) == "CE" && su[2] == 28 {
			n := func(i int) int64 { return int64(binary.LittleEndian.Uint32(su[i:])) }
			return span{n(4)*sector + n(12), n(20)}, true
		}
		su = su[su[2]:]
	}
	return span{}, false
}

// recordName returns the name of a record: that of Joliet, or of Rock Ridge in
// one NM entry, or without that its identifier as Linux shows it. It is not ok
// when the record is not well formed, or has no name.
func recordName(record []byte, joliet bool) (string, bool) {
	if len(record) < 34 || int(record[0]) < 34 || int(record[0]) > len(record) || record[32] == 0 || 33+int(record[32]) > int(record[0]) {
		return "", false
	}
	id := record[33 : 33+int(record[32])]
	if len(id) == 1 && id[0] <= 1 {
		return "", false
	}
	if joliet {
		if len(id)%2 != 0 {
			return "", false
		}
		var u []uint16
		for i := 0; i < len(id); i += 2 {
			u = append(u, binary.BigEndian.Uint16(id[i:]))
		}
		return strings.TrimSuffix(string(utf16.Decode(u)), ";1"), true
	}
	su, ok := systemUse(record)
	nameless := false
	for ok && len(su) >= 4 {
		n := int(su[2])
		switch {
		case n < 4 || n > len(su):
			return "", false
		case string(su[:2]) == "RR" && n >= 5:
			nameless = su[4]&0x08 == 0 // RRIP 1.09 announces NM there, and Linux believes it
		case string(su[:2]) == "NM" && n >= 5 && su[4] == 0 && !nameless:
			return string(su[5:n]), true
		}
		su = su[n:]
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(string(id)), ";1"), "."), ok
}

// A damaged image is an intact one with some bytes changed and cut at size.
type damaged struct {
	base    []byte
	size    int64
	changes []change
	how     string
}

type change struct {
	off  int64
	data []byte
}

func (d *damaged) String() string { return d.how }

// ReadAt implements io.ReaderAt.
func (d *damaged) ReadAt(p []byte, off int64) (int, error) {
	if off >= d.size {
		return 0, io.EOF
	}
	n := copy(p, d.base[off:d.size])
	for _, c := range d.changes {
		from, to := max(c.off, off), min(c.off+int64(len(c.data)), off+int64(n))
		if from < to {
			copy(p[from-off:to-off], c.data[from-c.off:])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// at returns the bytes of a span, zeros where the image has ended.
func (d *damaged) at(s span) []byte {
	b := make([]byte, s.size)
	d.ReadAt(b, s.off)
	return b
}

func (d *damaged) touches(s span) bool {
	return slices.ContainsFunc(d.changes, func(c change) bool { return s.overlaps(span{c.off, int64(len(c.data))}) })
}

// damage damages the image in one of the ways in which copies go wrong. Half of
// it hits the few places that an answer depends on.
func (o *oracle) damage(rng *rand.Rand) *damaged {
	d := &damaged{base: o.base, size: int64(len(o.base))}
	where := span{0, d.size}
	switch rng.IntN(8) {
	case 0, 1:
		where = o.meta[rng.IntN(len(o.meta))]
	case 2, 3:
		where = o.steps[rng.IntN(len(o.steps))]
	case 4:
		where = span{o.file.off, sector}
	case 5:
		where = o.file
	}
	switch rng.IntN(5) {
	case 0:
		d.size = rng.Int64N(d.size)
		d.how = fmt.Sprintf("cut at %d", d.size)
	case 1:
		first := (where.off + rng.Int64N(where.size)) / sector
		n := min(1+rng.Int64N(4), d.size/sector-first)
		d.changes = []change{{first * sector, make([]byte, n*sector)}}
		d.how = fmt.Sprintf("%d sectors of zeros from %d on", n, first)
	default:
		for range 1 + rng.IntN(4) {
			off, bit := where.off+rng.Int64N(where.size), rng.IntN(8)
			now := d.at(span{off, 1})
			d.changes = append(d.changes, change{off, []byte{now[0] ^ 1<<bit}})
			d.how += fmt.Sprintf("bit %d of byte %d flipped ", bit, off)
		}
	}
	return d
}

// judge names the kind of an answer, and says what is wrong with it.
func (o *oracle) judge(d *damaged, got inspect.Result) (kind, wrong string) {
	meta := d.size < int64(len(o.base)) || slices.ContainsFunc(o.meta, d.touches)
	record := d.at(o.steps[1])
	reads := extentOf(record)
	gzip := reads.size > 0 && bytes.HasPrefix(d.at(span{reads.off, 2}), []byte("\x1f\x8b"))
	switch got.Value {
	case inspect.Included:
		if o.file.off+o.file.size > d.size {
			return "included", "the archive is cut off"
		}
		return "included", ""
	case inspect.Unknown:
		if !meta {
			return "unknown", "nothing is damaged that the answer depends on"
		}
		return "unknown", ""
	case inspect.Broken:
		switch {
		case gzip:
			return "broken", "what the record leads to is gzip"
		case reads != o.file:
			return "broken: the record leads elsewhere", ""
		case reason.Of(got.Err) != reason.ArchiveNotGzip:
			return "broken", "its first bytes are there"
		}
		return "broken: the archive's first bytes are damaged", ""
	}
	const associated = 0x04 // ECMA-119 9.1.6: not shown
	for i, want := range []string{"etcd", "etcd-linux-amd64.tar.gz"} {
		off := o.steps[i].off
		record := d.at(span{off, min(255, sector-off%sector)}) // its length may have changed
		name, ok := recordName(record, o.joliet)
		switch {
		case !d.touches(o.steps[i]) || !ok:
		case record[25]&associated != 0:
			return "missing: a record was made one of an associated file", ""
		case name != want && !(o.joliet && strings.EqualFold(name, want)):
			return "missing: a record got another valid name", ""
		}
	}
	return "missing", "no record on the way got another valid name"
}
