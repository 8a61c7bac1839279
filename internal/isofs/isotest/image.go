package isotest

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
)

// Image is a built image. It holds only sectors that were written; all others
// read as zeros. It is safe for concurrent reads.
type Image struct {
	sectors map[int64]*[SectorSize]byte
	size    int64
	l       *layout
}

// Size is the length of the image in bytes.
func (m *Image) Size() int64 { return m.size }

// Truncate makes the image shorter, or longer with zeros.
func (m *Image) Truncate(size int64) { m.size = size }

// ReadAt implements [io.ReaderAt].
func (m *Image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= m.size {
		return 0, io.EOF
	}
	var short error
	if int64(len(p)) > m.size-off {
		p, short = p[:m.size-off], io.EOF
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := at % SectorSize
		end := min(len(p), n+int(SectorSize-in))
		if s := m.sectors[at/SectorSize]; s != nil {
			copy(p[n:end], s[in:])
		} else {
			clear(p[n:end])
		}
		n = end
	}
	return len(p), short
}

// WriteAt changes bytes of the image, which grows when they lie past its end.
// It implements [io.WriterAt] and never fails.
func (m *Image) WriteAt(p []byte, off int64) (int, error) {
	m.put(off, p)
	m.size = max(m.size, off+int64(len(p)))
	return len(p), nil
}

func (m *Image) put(off int64, p []byte) {
	for len(p) > 0 {
		s := m.sectors[off/SectorSize]
		if s == nil {
			s = new([SectorSize]byte)
			m.sectors[off/SectorSize] = s
		}
		n := copy(s[off%SectorSize:], p)
		p, off = p[n:], off+int64(n)
	}
}

// Bytes returns the whole image; only for small ones.
func (m *Image) Bytes() []byte {
	var b bytes.Buffer
	// Neither a bytes.Buffer nor ReadAt of an Image can fail.
	_, _ = io.Copy(&b, io.NewSectionReader(m, 0, m.size))
	return b.Bytes()
}

// Extent returns the byte offset and recorded length of the first extent of n.
func (m *Image) Extent(n *Node) (off, size int64) {
	return int64(m.l.block(n, 0)) * int64(m.l.spec.BlockSize), int64(m.l.sizeOf(n, 0))
}

// Record returns the byte offset of the i-th directory record of n. The root
// has none.
func (m *Image) Record(n *Node, i int) int64 { return m.l.nodes[n].records[i] }

// Area returns the byte offset of a continuation area.
func (m *Image) Area(a *Area) int64 {
	return int64(m.l.areas[a].sector)*SectorSize + int64(a.Offset)
}

// Counter counts what is read through it.
type Counter struct {
	R     io.ReaderAt
	reads atomic.Int64
	bytes atomic.Int64
}

// ReadAt implements [io.ReaderAt].
func (c *Counter) ReadAt(p []byte, off int64) (int, error) {
	c.reads.Add(1)
	c.bytes.Add(int64(len(p)))
	return c.R.ReadAt(p, off)
}

// Count returns the number of reads and of bytes that they asked for.
func (c *Counter) Count() (reads, size int64) { return c.reads.Load(), c.bytes.Load() }

// Faulty fails every read that touches the bytes from Off to Off+Len, as a
// drive does with a bad sector.
type Faulty struct {
	R        io.ReaderAt
	Off, Len int64
	Err      error
}

// ReadAt implements [io.ReaderAt].
func (f *Faulty) ReadAt(p []byte, off int64) (int, error) {
	if off < f.Off+f.Len && off+int64(len(p)) > f.Off {
		return 0, fmt.Errorf("read at %d: %w", off, f.Err)
	}
	return f.R.ReadAt(p, off)
}
