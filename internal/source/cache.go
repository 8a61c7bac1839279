package source

import (
	"sync"
	"time"
)

// What is read ahead. A presence check reads the volume descriptors, the root
// directory, one or two directories and the head of the archive: over HTTP it
// must cost no more than 64 KiB and 4 requests. genisoimage and xorriso put the
// directories right behind the descriptors, so the first read takes both, and
// the others are kept small.
const (
	headStart = 32 << 10 // sector 16 (ECMA-119 6.2.1): the first volume descriptor
	headEnd   = 64 << 10

	sector    = 2048
	minWindow = 8 << 10
	maxWindow = 1 << 20 // of a sequential reader

	// slowRead is the time of a read from which on the window shrinks: over a
	// slow line, 1 MiB would take longer than a read may.
	slowRead = 2 * time.Second
)

// A window decides how much is read at once.
type window struct {
	end  int64 // of the last read
	size int64
}

// next returns the range to read for want bytes at off: whole sectors, inside
// size. A reader that goes on where the last read ended is sequential, and gets
// twice as much as the last time.
func (w *window) next(off int64, want int, size int64) (from, to int64) {
	if off == w.end && w.size > 0 {
		w.size = min(2*w.size, maxWindow)
	} else {
		w.size = minWindow
	}
	from = off - off%sector
	end := off + min(int64(want), maxWindow)
	to = max(end+(sector-end%sector)%sector, from+w.size)
	if off >= headStart && off < headEnd {
		to = max(to, headEnd)
	}
	return from, min(to, size)
}

// took tells how the read went that ended at end.
func (w *window) took(end int64, d time.Duration) {
	w.end = end
	if d > slowRead {
		w.size = max(w.size/4, minWindow/2)
	}
}

// Bounds of a cache: enough to walk the directories of an image again without
// another request, little enough for hundreds of sources at once.
const (
	maxSpans      = 128
	maxCacheBytes = 2 << 20
)

// A cache keeps what was read last. Its spans do not overlap.
type cache struct {
	mu    sync.Mutex
	spans []span // the oldest first
	bytes int
}

type span struct {
	off  int64
	data []byte // not written to any more
}

func (s span) end() int64 { return s.off + int64(len(s.data)) }

// copy copies what is known from off on, and returns how much.
func (c *cache) copy(p []byte, off int64) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if off >= s.off && off < s.end() {
			return copy(p, s.data[off-s.off:])
		}
	}
	return 0
}

func (c *cache) has(off int64) bool { return c.copy(make([]byte, 1), off) == 1 }

// gap returns the end of what is not known of from..to, whose first byte is not.
func (c *cache) gap(from, to int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.off > from && s.off < to {
			to = s.off
		}
	}
	return to
}

func (c *cache) add(off int64, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, span{off, data})
	c.bytes += len(data)
	for len(c.spans) > 1 && (len(c.spans) > maxSpans || c.bytes > maxCacheBytes) {
		c.bytes -= len(c.spans[0].data)
		c.spans = c.spans[1:]
	}
}
