package archive

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/reason"
)

// maxHeap is the promise of the package, garbage included.
const maxHeap = 8 << 20

// peakHeap returns by how many bytes the heap grew at most while f ran, seen
// every 100 microseconds.
func peakHeap(f func()) uint64 {
	objects := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	runtime.GC()
	runtime.GC() // what finalizers and pools held on to
	before := objects()
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		most := before
		for {
			most = max(most, objects())
			select {
			case <-tick.C:
			case <-stop:
				peak <- max(most, objects())
				return
			}
		}
	}()
	f()
	close(stop)
	return <-peak - before
}

// repeated gives the same bytes again and again.
func repeated(b []byte, n int) io.Reader {
	readers := make([]io.Reader, n)
	for i := range readers {
		readers[i] = bytes.NewReader(b)
	}
	return io.MultiReader(readers...)
}

// rawEntry returns a tar entry of any type with any contents, as tar.Writer
// does not write it.
func rawEntry(name string, typeflag byte, claim int64, body []byte) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000755\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x00", claim))
	copy(h[136:], "00000000000\x00")
	h[156] = typeflag
	copy(h[257:], "ustar\x0000")
	if typeflag == tar.TypeGNUSparse {
		copy(h[257:], "ustar  \x00")
	}
	checksum(h)
	b := append(h, body...)
	return append(b, make([]byte, -len(b)&511)...)
}

func checksum(h []byte) {
	copy(h[148:156], "        ")
	sum := 0
	for _, c := range h[:512] {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// paxRecords returns pax records of 13 bytes each, with keys that all differ,
// of size bytes at most.
func paxRecords(size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len()+13 <= size; i++ {
		fmt.Fprintf(&b, "13 K%07d=\n", i)
	}
	return b.Bytes()
}

// record formats one pax record (POSIX.1-2017 pax, extended header).
func record(key, value string) string {
	n := len(key) + len(value) + 3
	for n != len(fmt.Sprint(n))+len(key)+len(value)+3 {
		n = len(fmt.Sprint(n)) + len(key) + len(value) + 3
	}
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// gnuSparse returns an entry etcd in GNU's sparse format 1.0, with the map at
// the start of its data.
func gnuSparse(size int64, body []byte) []byte {
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
		record("GNU.sparse.name", "etcd") + record("GNU.sparse.realsize", fmt.Sprint(size))
	return append(rawEntry("x", tar.TypeXHeader, int64(len(pax)), []byte(pax)),
		rawEntry("sparse", tar.TypeReg, int64(len(body)), body)...)
}

// oldSparse returns an entry etcd in the old GNU sparse format, whose map goes
// on for n blocks and then has no end.
func oldSparse(n int) []byte {
	const extended, realSize, extendedMap = 482, 483, 504
	h := rawEntry("etcd", tar.TypeGNUSparse, 0, nil)
	h[extended] = 1
	copy(h[realSize:], "00000010000\x00")
	checksum(h)
	block := bytes.Repeat([]byte("00000000000\x0000000000000\x00"), 21)
	block = append(block, make([]byte, 512-len(block))...)
	block[extendedMap] = 1
	return append(h, bytes.Repeat(block, n)...)
}

// withData returns a program whose data segment begins with b.
func withData(b []byte, pad int) []byte {
	p := archivetest.ELF(archivetest.Program{Bare: true, Pad: len(b) + pad})
	copy(p[0x1000:], b)
	return p
}

// inline returns the start of build information in the format since Go 1.18.
func inline(tail ...byte) []byte {
	b := make([]byte, buildInfoHeader)
	copy(b, buildInfoMagic)
	b[15] = 2
	return append(b, tail...)
}

// Archives that try to make the reader allocate or go on for ever. Each ends
// with the code that is named, within the promised memory.
func TestMemory(t *testing.T) {
	etcd := archivetest.Tar(archivetest.File("etcd", archivetest.ELF(archivetest.Program{Version: "3.5.21"})))
	packed := func(parts ...[]byte) io.Reader {
		return bytes.NewReader(archivetest.Gzip(bytes.Join(parts, nil)))
	}
	program := func(b []byte) io.Reader { return packed(archivetest.Tar(archivetest.File("etcd", b))) }
	pax := func(size int) []byte { return rawEntry("x", tar.TypeXHeader, int64(size), paxRecords(size)) }
	doc := rawEntry("doc", tar.TypeReg, 0, nil)
	member := func(flags byte, extra []byte) []byte {
		b := []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
		b[3] = flags
		b = append(b, extra...)
		return append(b, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0) // an empty final block, CRC-32 and length 0
	}
	const manyRecords = 13 * 4600 // 58 KiB, within the limit

	// The inputs are made when their turn comes: what is on the heap before
	// decides how far the collector lets it grow.
	for _, tt := range []struct {
		name string
		in   func() io.Reader
		code reason.Code
	}{
		{"pax records of 1 MiB", func() io.Reader { return packed(pax(13<<16), etcd) }, reason.ArchiveTooLarge},
		{"pax records that claim 8 GiB", func() io.Reader {
			return packed(rawEntry("x", tar.TypeXHeader, 0o77777777777, paxRecords(1<<21)), etcd)
		}, reason.ArchiveTooLarge},
		{"pax records of 58 KiB, 4 times", func() io.Reader {
			return packed(bytes.Repeat(append(pax(manyRecords), doc...), 4), etcd)
		}, reason.Ready},
		{"pax records of 58 KiB, 20 times", func() io.Reader {
			return packed(bytes.Repeat(append(pax(manyRecords), doc...), 20), etcd)
		}, reason.ArchiveTooLarge},
		{"global pax records, 20 times", func() io.Reader {
			return packed(bytes.Repeat(rawEntry("g", tar.TypeXGlobalHeader, manyRecords, paxRecords(manyRecords)), 20), etcd)
		}, reason.ArchiveTooLarge},
		{"2,000 entries with pax records", func() io.Reader {
			return packed(bytes.Repeat(append(pax(13*39), doc...), 1_999), etcd)
		}, reason.Ready},
		{"pax headers without an entry", func() io.Reader { return packed(bytes.Repeat(pax(13), 4096), etcd) }, reason.ArchiveTooLarge},
		{"long name of 1 MiB", func() io.Reader {
			return packed(rawEntry("L", tar.TypeGNULongName, 1<<20, bytes.Repeat([]byte("n"), 1<<20)), etcd)
		}, reason.ArchiveTooLarge},

		{"sparse map without an end", func() io.Reader { return packed(gnuSparse(1<<20, bytes.Repeat([]byte("1"), 1<<20))) }, reason.ArchiveTooLarge},
		{"sparse map of 100,000 entries", func() io.Reader {
			return packed(gnuSparse(1<<20, append([]byte("100000\n"), bytes.Repeat([]byte("1\n1\n"), 100_000)...)))
		}, reason.ArchiveTooLarge},
		{"sparse file of 8 EiB", func() io.Reader {
			return packed(gnuSparse(1<<63-1, append([]byte("0\n"), make([]byte, 510)...)))
		}, reason.ArchiveTooLarge},
		{"sparse file of 200 MiB", func() io.Reader {
			return packed(gnuSparse(200<<20, append([]byte("1\n209715200\n0\n"), make([]byte, 498)...)), make([]byte, 1024))
		}, reason.ArchiveNotELF},
		{"old sparse map without an end", func() io.Reader { return packed(oldSparse(4096)) }, reason.ArchiveTooLarge},

		{"2,000 entries", func() io.Reader { return packed(bytes.Repeat(doc, 1_999), etcd) }, reason.Ready},
		{"bomb", func() io.Reader { return packed(rawEntry("doc", tar.TypeReg, 17<<20, make([]byte, 17<<20))) }, reason.ArchiveTooLarge},
		{"bomb behind the end marker", func() io.Reader { return packed(etcd, make([]byte, 17<<20)) }, reason.ArchiveTooLarge},
		{"200,000 empty members", func() io.Reader { return io.MultiReader(packed(etcd), repeated(member(0, nil), 200_000)) }, reason.Ready},
		{"300 members with headers of 64 KiB", func() io.Reader {
			return io.MultiReader(packed(etcd), repeated(member(4, append([]byte{0xff, 0xff}, make([]byte, 0xffff)...)), 300))
		}, reason.ArchiveTooLarge},

		{"build information that claims 1 TiB", func() io.Reader { return program(withData(inline(binary.AppendUvarint(nil, 1<<40)...), 1<<20)) }, reason.Ready},
		{"build information that claims 9 MiB", func() io.Reader { return program(withData(inline(binary.AppendUvarint(nil, 9<<20)...), 1<<20)) }, reason.Ready},
		{"build information of 1 MiB", func() io.Reader {
			return program(withData(inline(binary.AppendUvarint([]byte("\x02go"), 1<<20)...), 2<<20))
		}, reason.Ready},
		{"build information of 12,800 modules", func() io.Reader {
			return program(withData(archivetest.BuildInfo("go1.26.0", "path\tx\n"+strings.Repeat("dep\ta\tv\n", 12_800)), 0))
		}, reason.Ready},
		{"old build information that claims 9 MiB", func() io.Reader {
			return program(withData(pointerBuildInfo(binary.LittleEndian, 8, 0x401000, "path\tx\n", 9<<20), 1024))
		}, reason.Ready},
		{"magic that is never aligned", func() io.Reader {
			return program(withData(bytes.Repeat([]byte(" "+buildInfoMagic+" "), 1<<17), 0))
		}, reason.Ready},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, sink := tt.in(), NewTempSink(t.TempDir())
			var err error
			peak := peakHeap(func() { _, err = Verify(t.Context(), in, Want{Arch: "amd64"}, sink) })
			if got := reason.Of(err); got != tt.code {
				t.Errorf("got %v, want %s", err, tt.code)
			}
			if peak > maxHeap {
				t.Errorf("peak heap %d KiB, want at most %d", peak>>10, maxHeap>>10)
			}
			t.Logf("peak heap %d KiB: %v", peak>>10, err)
		})
	}
}
