package isofs

import (
	"encoding/binary"
	"time"
)

// File flags of a directory record (ECMA-119 9.1.6). The existence bit (bit 0,
// "hidden") is ignored, as Linux does by default.
const (
	flagDirectory   = 1 << 1
	flagAssociated  = 1 << 2
	flagMultiExtent = 1 << 7
)

// recordHeader is the length of a directory record without its identifier and
// system use field; the shortest record has an identifier of one byte.
const recordHeader = 33

// Identifiers of a directory's first two records (ECMA-119 6.8.2.2).
const (
	idSelf   = 0x00
	idParent = 0x01
)

// record is a directory record (ECMA-119 9.1). Its slices share the buffer it
// was parsed from.
type record struct {
	length int    // of the whole record
	block  int64  // first logical block of the data, after any extended attribute record
	size   int64  // bytes of data
	date   []byte // 7 bytes, ECMA-119 9.1.5
	flags  byte
	gaps   bool   // recorded in interleaved mode
	id     []byte // file identifier
	system []byte // system use field
}

// parseRecord parses the directory record at the start of b, which ends where
// the sector does. On a fault it says what is wrong, and length is 0 if the
// next record cannot be found either.
func parseRecord(b []byte) (rec record, wrong string) {
	n := int(b[0])
	switch {
	case n <= recordHeader:
		return rec, "a directory record is too short"
	case n > len(b):
		return rec, "a directory record crosses the end of its sector"
	}
	b = b[:n]
	rec.length = n
	// Only the little-endian halves are looked at: some mastering programs
	// get the others wrong, and Linux does not mind.
	rec.block = int64(binary.LittleEndian.Uint32(b[2:])) + int64(b[1])
	rec.size = int64(binary.LittleEndian.Uint32(b[10:]))
	rec.date = b[18:25]
	rec.flags = b[25]
	rec.gaps = b[27] != 0
	idLen := int(b[32])
	switch {
	case idLen == 0:
		return rec, "a directory record has an empty name"
	case recordHeader+idLen > n:
		return rec, "a name is longer than its directory record"
	}
	rec.id = b[recordHeader : recordHeader+idLen]
	// An identifier of even length is followed by a padding byte (9.1.12).
	if at := recordHeader + idLen + (idLen+1)%2; at < n {
		rec.system = b[at:]
	}
	return rec, ""
}

// special reports whether the record has the identifier of a directory's
// first (idSelf) or second (idParent) record.
func (rec *record) special(id byte) bool { return len(rec.id) == 1 && rec.id[0] == id }

// recordTime decodes the seven bytes of ECMA-119 9.1.5. What is no date is
// the zero time.
func recordTime(b []byte) time.Time {
	return civilTime(1900+int(b[0]), int(b[1]), int(b[2]), int(b[3]), int(b[4]), int(b[5]), 0, int8(b[6]))
}

// volumeTime decodes the seventeen bytes of ECMA-119 8.4.26.1: decimal digits
// up to hundredths of a second, and a zone.
func volumeTime(b []byte) time.Time {
	number := func(digits []byte) int {
		n := 0
		for _, c := range digits {
			if c < '0' || c > '9' {
				return -1
			}
			n = 10*n + int(c-'0')
		}
		return n
	}
	return civilTime(number(b[:4]), number(b[4:6]), number(b[6:8]), number(b[8:10]),
		number(b[10:12]), number(b[12:14]), number(b[14:16]), int8(b[16]))
}

// civilTime is the given local time of a zone that is quarters quarters of an
// hour ahead of UTC. Offsets beyond 13 hours are taken for UTC, as in Linux.
func civilTime(year, month, day, hour, minute, second, hundredth int, quarters int8) time.Time {
	if year < 0 || month < 1 || month > 12 || day < 1 || day > 31 ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 || hundredth < 0 {
		return time.Time{}
	}
	const limit = 52
	if quarters < -limit || quarters > limit {
		quarters = 0
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, hundredth*int(10*time.Millisecond), time.UTC)
	return t.Add(-time.Duration(quarters) * 15 * time.Minute)
}
