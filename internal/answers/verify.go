package answers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// The pages of a bbolt file, in the byte order of the machine (bbolt,
// internal/common: page.go, meta.go, inode.go). A page begins with a header:
//
//	id uint64, flags uint16, count uint16, overflow uint32
//
// Pages 0 and 1 are the meta pages, of which the valid one of the later
// transaction counts. It names the root of a tree of pages and the list of free
// pages.
const (
	headerSize  = 16
	metaSize    = 64
	elementSize = 16 // of both kinds
	bucketSize  = 16 // root uint64, sequence uint64
	idSize      = 8

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10

	elementBucket = 0x01

	metaMagic   = 0xED0CDAED
	metaVersion = 2
	noFreelist  = 1<<64 - 1
	longList    = 0xFFFF // count of a free list whose first element is the count
)

const (
	leastPage = 1 << 10 // bbolt looks for nothing smaller
	mostPage  = 1 << 16 // largest page of a machine that Go runs on
	// maxFile is the largest file that is opened, and that is written: at about a
	// kibibyte an answer it has room for a million.
	maxFile = 1 << 30
	// maxNode is the largest node with its overflow pages. bbolt splits nodes of
	// more than four records, so one has four of maxRecord at most.
	maxNode = 1 << 20
	// maxDepth is more than twice the depth of the largest tree, two keys a page.
	maxDepth = 64
)

// errNewerFormat says that the file was written by a later bbolt.
var errNewerFormat = errors.New("it has a newer format")

// A checker follows a file from its root.
type checker struct {
	r        *window
	pageSize int64
	pages    uint64   // that the file has in use, free ones included
	seen     []bool   // by page: it is accounted for
	bufs     [][]byte // by depth of the tree: the node there
}

// verify reads every page that is in use and returns an error unless bbolt can
// open, read and change the file without leaving its bounds, and unless each
// page is either reachable or free: a flipped bit that makes a node shorter
// than it was would lose what is below it. It does not look into records. The
// warning is not empty when the last change may be lost.
func verify(ctx context.Context, r io.ReaderAt, size int64) (warning string, err error) {
	switch {
	case size == 0:
		return "", errors.New("it is empty")
	case size > maxFile:
		return "", fmt.Errorf("it has %d bytes, and may have %d", size, maxFile)
	}
	m, warning, err := readMeta(r, size)
	if err != nil {
		return "", err
	}
	c := &checker{r: &window{r: r}, pageSize: m.pageSize, pages: m.pages}
	if m.pages > uint64(size/m.pageSize) {
		return "", fmt.Errorf("it is truncated: %d pages of %d bytes are in use, the file has %d bytes", m.pages, m.pageSize, size)
	}
	c.seen = make([]bool, m.pages)
	if err := c.tree(ctx, m.root, nil, nil, 0); err != nil {
		return "", err
	}
	if m.freelist == noFreelist {
		return warning, nil // bbolt then takes for free what cannot be reached
	}
	if err := c.freelist(m.freelist); err != nil {
		return "", err
	}
	for id, seen := range c.seen {
		if !seen && id > 1 {
			return "", fmt.Errorf("page %d is neither in use nor free", id)
		}
	}
	return warning, nil
}

// A meta is the content of a meta page.
type meta struct {
	pageSize              int64
	root, freelist, pages uint64
	txid                  uint64
}

// readMeta finds the meta page that counts. It takes for valid what bbolt does:
// the two must not go different ways.
func readMeta(r io.ReaderAt, size int64) (m meta, warning string, err error) {
	first, firstErr := metaAt(r, 0)
	second, secondErr, place := meta{}, firstErr, int64(leastPage)
	if firstErr == nil {
		place = first.pageSize
		second, secondErr = metaAt(r, place)
	} else {
		// The page size is unknown then, and so is the place of the second page.
		for ; place <= mostPage && place < size-leastPage; place *= 2 {
			if second, err = metaAt(r, place); err == nil {
				secondErr = nil
				break
			}
		}
	}
	switch {
	case firstErr != nil && secondErr != nil:
		return m, "", firstErr
	case firstErr != nil || secondErr == nil && second.txid > first.txid:
		m = second
	default:
		m = first
	}
	if m.pageSize < leastPage || m.pageSize > mostPage || m.pageSize&(m.pageSize-1) != 0 ||
		secondErr == nil && second.pageSize != place {
		return m, "", fmt.Errorf("its pages cannot have %d bytes", m.pageSize)
	}
	if firstErr != nil || secondErr != nil {
		warning = "one of the two meta pages is damaged: the last change may be lost"
	}
	return m, warning, nil
}

func metaAt(r io.ReaderAt, at int64) (meta, error) {
	var b [headerSize + metaSize]byte
	if _, err := r.ReadAt(b[:], at); err == io.EOF {
		return meta{}, errors.New("it is no file of answers: too short")
	} else if err != nil {
		return meta{}, fmt.Errorf("cannot read its beginning: %w", err)
	}
	order, p := binary.NativeEndian, b[headerSize:]
	if order.Uint32(p) != metaMagic {
		return meta{}, errors.New("it is no file of answers, or its beginning is damaged")
	}
	sum := fnv.New64a()
	sum.Write(p[:metaSize-8])
	if sum.Sum64() != order.Uint64(p[metaSize-8:]) {
		return meta{}, errors.New("the checksum of its beginning does not match")
	}
	if v := order.Uint32(p[4:]); v > metaVersion {
		return meta{}, fmt.Errorf("%w: version %d of bbolt's, where %d is known", errNewerFormat, v, metaVersion)
	} else if v < metaVersion {
		return meta{}, fmt.Errorf("it has version %d of bbolt's format", v)
	}
	return meta{
		pageSize: int64(order.Uint32(p[8:])),
		root:     order.Uint64(p[16:]),
		freelist: order.Uint64(p[32:]),
		pages:    order.Uint64(p[40:]),
		txid:     order.Uint64(p[48:]),
	}, nil
}

// An element is one record of a leaf, or one child of a branch.
type element struct {
	flags uint32
	key   []byte
	value []byte // of a leaf's
	child uint64 // of a branch's
}

// tree checks the node id and all below it. Its first key is low and all are less
// than high, where these are not nil.
func (c *checker) tree(ctx context.Context, id uint64, low, high []byte, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	flags, count, b, err := c.node(id, depth)
	if err != nil {
		return err
	}
	leaf := flags == flagLeaf
	if !leaf && (flags != flagBranch || count == 0) {
		return fmt.Errorf("page %d is neither a leaf nor a branch with children", id)
	}
	if leaf && count == 0 && low != nil {
		return fmt.Errorf("page %d is a leaf without records", id) // only the root of a bucket may be
	}
	elements, err := parse(b, count, leaf)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if low != nil && !bytes.Equal(elements[0].key, low) {
		// bbolt finds a node in its parent by this key when it writes it anew.
		return fmt.Errorf("page %d does not begin with the key that its parent has", id)
	}
	for i, e := range elements {
		if i > 0 && bytes.Compare(elements[i-1].key, e.key) >= 0 ||
			high != nil && bytes.Compare(e.key, high) >= 0 {
			return fmt.Errorf("page %d: key %d is out of order", id, i)
		}
	}
	for i, e := range elements {
		switch {
		case !leaf:
			next := high
			if i+1 < len(elements) {
				next = elements[i+1].key
			}
			err = c.tree(ctx, e.child, e.key, next, depth+1)
		case e.flags == elementBucket:
			err = c.bucket(ctx, id, e.value, depth+1)
		case e.flags != 0:
			err = fmt.Errorf("page %d: record %d is of an unknown kind", id, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket within the leaf id: a tree of its own, or a single
// leaf that follows the bucket's head.
func (c *checker) bucket(ctx context.Context, id uint64, v []byte, depth int) error {
	if len(v) < bucketSize {
		return fmt.Errorf("page %d: a bucket of %d bytes", id, len(v))
	}
	if root := binary.NativeEndian.Uint64(v); root != 0 {
		return c.tree(ctx, root, nil, nil, depth)
	}
	v = v[bucketSize:]
	if len(v) < headerSize || binary.NativeEndian.Uint16(v[8:]) != flagLeaf {
		return fmt.Errorf("page %d: a bucket without a leaf", id)
	}
	if binary.NativeEndian.Uint64(v) != 0 || binary.NativeEndian.Uint32(v[12:]) != 0 {
		return fmt.Errorf("page %d: a bucket within that has pages", id) // bbolt would free them with the next write
	}
	elements, err := parse(v, int(binary.NativeEndian.Uint16(v[10:])), true)
	if err != nil {
		return fmt.Errorf("page %d: a bucket within: %w", id, err)
	}
	for i, e := range elements {
		if e.flags != 0 || i > 0 && bytes.Compare(elements[i-1].key, e.key) >= 0 {
			return fmt.Errorf("page %d: a bucket within: record %d is of an unknown kind or out of order", id, i)
		}
	}
	return nil
}

// header reads the header of a page, checks that the page and its overflow are
// within the file and were not met before, and accounts for them.
func (c *checker) header(id uint64) (flags uint16, count int, size int64, err error) {
	if id < 2 || id >= c.pages {
		return 0, 0, 0, fmt.Errorf("page %d is out of bounds", id)
	}
	var h [headerSize]byte
	if _, err := c.r.ReadAt(h[:], int64(id)*c.pageSize); err != nil {
		return 0, 0, 0, fmt.Errorf("cannot read page %d: %w", id, err)
	}
	order := binary.NativeEndian
	overflow := uint64(order.Uint32(h[12:]))
	if order.Uint64(h[:]) != id || overflow >= c.pages-id {
		return 0, 0, 0, fmt.Errorf("page %d does not begin as one", id)
	}
	for p := id; p <= id+overflow; p++ {
		if c.seen[p] {
			return 0, 0, 0, fmt.Errorf("page %d is used twice", p)
		}
		c.seen[p] = true
	}
	return order.Uint16(h[8:]), int(order.Uint16(h[10:])), int64(overflow+1) * c.pageSize, nil
}

// node reads a node of the tree. Its bytes are valid until the next node of the
// same depth is read.
func (c *checker) node(id uint64, depth int) (flags uint16, count int, b []byte, err error) {
	flags, count, size, err := c.header(id)
	if err != nil {
		return 0, 0, nil, err
	}
	if size > maxNode || depth >= maxDepth {
		return 0, 0, nil, fmt.Errorf("page %d: a node of %d bytes at depth %d", id, size, depth)
	}
	if depth == len(c.bufs) {
		c.bufs = append(c.bufs, nil)
	}
	b = slices.Grow(c.bufs[depth][:0], int(size))[:size]
	c.bufs[depth] = b
	if _, err := c.r.ReadAt(b, int64(id)*c.pageSize); err != nil {
		return 0, 0, nil, fmt.Errorf("cannot read page %d: %w", id, err)
	}
	return flags, count, b, nil
}

// parse returns the elements of a node. bbolt writes their keys and values one
// after the other behind the last element; any other place is damage.
func parse(b []byte, count int, leaf bool) ([]element, error) {
	order := binary.NativeEndian
	next := int64(headerSize + count*elementSize)
	if next > int64(len(b)) {
		return nil, fmt.Errorf("%d elements in %d bytes", count, len(b))
	}
	if count == 0 && len(bytes.Trim(b[headerSize:], "\x00")) > 0 {
		return nil, errors.New("it has content and no elements") // bbolt writes pages that begin as zeros
	}
	elements := make([]element, count)
	for i := range elements {
		at := headerSize + i*elementSize
		var e element
		var pos, keySize, valueSize int64
		if h := b[at : at+elementSize]; leaf {
			e.flags = order.Uint32(h)
			pos, keySize, valueSize = int64(order.Uint32(h[4:])), int64(order.Uint32(h[8:])), int64(order.Uint32(h[12:]))
		} else {
			pos, keySize, e.child = int64(order.Uint32(h)), int64(order.Uint32(h[4:])), order.Uint64(h[8:])
		}
		if keySize == 0 || int64(at)+pos != next || keySize+valueSize > int64(len(b))-next {
			return nil, fmt.Errorf("element %d is out of place", i)
		}
		e.key = b[next : next+keySize]
		e.value = b[next+keySize : next+keySize+valueSize]
		next += keySize + valueSize
		elements[i] = e
	}
	return elements, nil
}

// freelist checks the list of free pages, and accounts for the pages on it.
func (c *checker) freelist(id uint64) error {
	flags, count, size, err := c.header(id)
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	list := io.NewSectionReader(c.r, int64(id)*c.pageSize+headerSize, size-headerSize)
	entries := uint64(count)
	if count == longList {
		var b [idSize]byte
		if _, err := io.ReadFull(list, b[:]); err != nil {
			return fmt.Errorf("cannot read page %d: %w", id, err)
		}
		entries = order.Uint64(b[:])
	}
	if flags != flagFreelist || entries > uint64(size-headerSize)/idSize {
		return fmt.Errorf("page %d is no list of free pages", id)
	}
	var chunk [512 * idSize]byte
	for last := uint64(0); entries > 0; {
		n := min(entries, uint64(len(chunk)/idSize))
		b := chunk[:n*idSize]
		if _, err := io.ReadFull(list, b); err != nil {
			return fmt.Errorf("cannot read page %d: %w", id, err)
		}
		for ; len(b) > 0; b = b[idSize:] {
			free := order.Uint64(b)
			if free < 2 || free >= c.pages || free <= last || c.seen[free] {
				return fmt.Errorf("page %d: free page %d is out of order, out of bounds or in use", id, free)
			}
			c.seen[free], last = true, free
		}
		entries -= n
	}
	return nil
}

// A window reads a file in large pieces and keeps some: nodes lie mostly one
// behind the other, and two calls of the kernel a page are most of the work.
type window struct {
	r      io.ReaderAt
	pieces [16]struct {
		b  []byte
		at int64
	}
}

const pieceSize = 128 << 10

// ReadAt is io.ReaderAt's.
func (w *window) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off / pieceSize * pieceSize
		piece := &w.pieces[at/pieceSize%int64(len(w.pieces))]
		if piece.at != at || len(piece.b) == 0 {
			b := slices.Grow(piece.b[:0], pieceSize)[:pieceSize]
			got, err := w.r.ReadAt(b, at)
			piece.b, piece.at = b[:got], at
			if err != nil && err != io.EOF {
				piece.b = nil
				return n, err
			}
		}
		if off-at >= int64(len(piece.b)) {
			return n, io.EOF
		}
		got := copy(p[n:], piece.b[off-at:])
		n, off = n+got, off+int64(got)
	}
	return n, nil
}
