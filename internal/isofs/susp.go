package isofs

import (
	"encoding/binary"
	"errors"
	"time"
)

const (
	// maxContinuations is how many continuation areas one record may chain:
	// Linux gives up after as many, and a chain that long is a loop.
	maxContinuations = 32
	// maxName is the length at which Linux stops joining the parts of a name.
	maxName = 254
	// maxLink is PATH_MAX without its final NUL: no longer target can be
	// followed.
	maxLink = 4095
	// xaLength is the size of the CD-ROM XA attributes that may precede the
	// entries of the root's first record.
	xaLength = 14
)

// Flags of NM and of SL components (RRIP 4.1.3.1, 4.1.4).
const (
	partContinues = 1 << 0
	partCurrent   = 1 << 1
	partParent    = 1 << 2
	partRoot      = 1 << 3
)

// systemUse is what the entries in the system use field of a directory record
// say (SUSP 5, RRIP 4, and ZF of zisofs). The zero value says nothing.
type systemUse struct {
	sp   bool // SP was seen, with skip
	skip int  // bytes to leave out in all other records
	er   bool // ER was seen
	rr   bool // an entry of Rock Ridge was seen

	name      []byte // NM parts joined
	hasName   bool
	nameOpen  bool // the last NM promised another
	nameFull  bool // longer than Linux takes
	dotName   bool // NM says "." or ".."
	nameless  bool // RR says that there is no NM
	hidden    bool // RE: a relocated directory, to be found elsewhere
	child     int64
	hasChild  bool // CL: a directory that was relocated to block child
	hasMode   bool
	mode      uint32 // st_mode
	modTime   time.Time
	link      []byte // SL components joined
	hasLink   bool
	linkSlash bool // the next component follows a slash
	zisofs    bool
	realSize  int64 // of a zisofs file, uncompressed

	// wrong is why the entries could not be read to their end. What was read
	// before that is set.
	wrong error
}

// reset forgets everything but the memory.
func (u *systemUse) reset() { *u = systemUse{name: u.name[:0], link: u.link[:0]} }

// continuation returns the bytes of the continuation area that CE names
// (SUSP 5.1). They need be valid only until its next call.
type continuation func(block, offset, size uint32) ([]byte, error)

// parse reads the entries in area and in the areas it continues in.
func (u *systemUse) parse(area []byte, more continuation) {
	for hops := 0; ; hops++ {
		next := u.parseArea(area)
		if u.wrong != nil || next == nil {
			break
		}
		if hops == maxContinuations {
			u.wrong = errors.New("the continuation areas do not end")
			return
		}
		block := binary.LittleEndian.Uint32(next[4:])
		if block == 0 {
			break // Linux takes this for no continuation
		}
		area, u.wrong = more(block, binary.LittleEndian.Uint32(next[12:]), binary.LittleEndian.Uint32(next[20:]))
		if u.wrong != nil {
			return
		}
	}
	if u.wrong == nil && u.nameOpen && !u.nameFull {
		u.wrong = errors.New("a name ends before its last part")
	}
}

// minLength is the least length of an entry whose fields are used.
func minLength(sig string) int {
	switch sig {
	case "RR", "SL", "NM", "TF":
		return 5
	case "SP":
		return 7
	case "ER":
		return 8
	case "CL", "PL":
		return 12
	case "ZF":
		return 16
	case "CE":
		return 28
	case "PX":
		return 36 // 44 since RRIP 1.12
	default:
		return 4
	}
}

// parseArea reads the entries in one area and returns its last CE entry, a
// copy, or nil.
func (u *systemUse) parseArea(area []byte) (next []byte) {
	for len(area) >= 4 { // what is shorter is padding (SUSP 4)
		n := int(area[2])
		sig := string(area[:2])
		if n < 4 || n > len(area) {
			u.wrong = errors.New("a system use entry has an impossible length")
			return nil
		}
		e := area[:n]
		area = area[n:]
		if n < minLength(sig) {
			u.wrong = errors.New("system use entry " + sig + " is too short")
			return nil
		}
		switch sig {
		case "ST":
			return next
		case "CE":
			next = append(next[:0], e...)
		case "SP":
			if e[4] != 0xbe || e[5] != 0xef {
				u.wrong = errors.New("system use entry SP lacks its check bytes")
				return nil
			}
			u.sp, u.skip = true, int(e[6])
		case "ER":
			if 8+int(e[4]) > n {
				u.wrong = errors.New("system use entry ER is too short")
				return nil
			}
			u.er = true
		default:
			u.parseRockRidge(sig, e)
			if u.wrong != nil {
				return nil
			}
		}
	}
	return next
}

// parseRockRidge reads one entry of RRIP or zisofs. Others are ignored.
func (u *systemUse) parseRockRidge(sig string, e []byte) {
	switch sig {
	case "RR":
		const hasNM = 1 << 3
		u.nameless = e[4]&hasNM == 0
	case "NM":
		u.addName(e[4], e[5:])
	case "RE":
		u.hidden = true
	case "CL":
		u.child, u.hasChild = int64(binary.LittleEndian.Uint32(e[4:])), true
	case "PX":
		u.mode, u.hasMode = binary.LittleEndian.Uint32(e[4:]), true
	case "TF":
		u.addTimes(e[4], e[5:])
	case "SL":
		u.hasLink = true
		u.addLink(e[5:])
	case "ZF":
		// Linux reads "pz" with blocks of up to 128 KiB, and shows any other
		// algorithm as the bytes that are recorded.
		if string(e[4:6]) == "pz" && e[7] <= 17 {
			u.zisofs, u.realSize = true, int64(binary.LittleEndian.Uint32(e[8:]))
		}
		return
	case "PN", "PL", "SF":
	default:
		return
	}
	u.rr = true
}

// addName joins one NM entry (RRIP 4.1.4).
func (u *systemUse) addName(flags byte, part []byte) {
	switch {
	case flags&(partCurrent|partParent) != 0:
		u.dotName = true // right only in a directory's first two records
		return
	case flags&^partContinues != 0:
		return // reserved; Linux leaves such an entry out
	}
	u.hasName, u.nameOpen = true, flags&partContinues != 0
	if u.nameFull || len(u.name)+len(part) >= maxName {
		u.nameFull = true
		return
	}
	u.name = append(u.name, part...)
}

// addTimes takes the modification time from a TF entry (RRIP 4.1.6).
func (u *systemUse) addTimes(flags byte, times []byte) {
	const (
		creation = 1 << 0
		modify   = 1 << 1
		longForm = 1 << 7
	)
	if flags&modify == 0 {
		return
	}
	size, decode := 7, recordTime
	if flags&longForm != 0 {
		size, decode = 17, volumeTime
	}
	if flags&creation != 0 {
		times = times[min(size, len(times)):]
	}
	if len(times) >= size {
		u.modTime = decode(times[:size])
	}
}

// addLink joins the components of one SL entry (RRIP 4.1.3).
func (u *systemUse) addLink(parts []byte) {
	for len(parts) >= 2 {
		flags, n := parts[0], int(parts[1])
		if 2+n > len(parts) {
			u.wrong = errors.New("a component of a symbolic link is longer than its entry")
			return
		}
		text := parts[2 : 2+n]
		parts = parts[2+n:]
		if u.linkSlash {
			u.link = append(u.link, '/')
		}
		switch flags &^ partContinues {
		case 0:
			u.link = append(u.link, text...)
		case partCurrent:
			u.link = append(u.link, '.')
		case partParent:
			u.link = append(u.link, ".."...)
		case partRoot:
			u.link = append(u.link, '/')
		default:
			u.wrong = errors.New("a component of a symbolic link has unknown flags")
			return
		}
		if len(u.link) > maxLink {
			u.wrong = errors.New("a symbolic link is longer than a path may be")
			return
		}
		u.linkSlash = flags&(partContinues|partRoot) == 0
	}
}
