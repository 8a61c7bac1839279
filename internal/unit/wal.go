package unit

import (
	"bufio"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// An owner is whose data a write-ahead log holds.
type owner struct{ member, cluster uint64 }

const (
	// maxWALFrame bounds one of the records that precede the metadata, in bytes.
	// They are below 100.
	maxWALFrame = 64 << 10
	// maxWALFrames is how many records are read in search of the metadata. etcd
	// writes it second in every file, after the checksum of the file before.
	maxWALFrames = 8
	// maxWALFiles bounds the directory listing: etcd keeps five files.
	maxWALFiles = 1000
)

// Types of walpb.Record, field 1 (etcd server/storage/wal/wal.go).
const (
	walMetadata = 1
	walCRC      = 4
)

// readOwner reads the metadata of the first WAL file in dir. The error wraps
// fs.ErrNotExist when there is no WAL.
func readOwner(dir string) (owner, error) {
	name, err := firstWAL(dir)
	if err != nil {
		return owner{}, err
	}
	f, err := os.Open(name)
	if err != nil {
		return owner{}, err
	}
	defer f.Close()
	o, err := walOwner(f)
	if err != nil {
		return owner{}, fmt.Errorf("%s: %w", name, err)
	}
	return o, nil
}

// firstWAL returns the oldest file of a WAL: their names are sequence numbers.
func firstWAL(dir string) (string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxWALFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".wal") })
	if len(names) == 0 {
		return "", fmt.Errorf("%s: no WAL file: %w", dir, fs.ErrNotExist)
	}
	name := filepath.Join(dir, slices.Min(names))
	if fi, err := os.Lstat(name); err != nil {
		return "", err
	} else if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s: not a regular file", name)
	}
	return name, nil
}

// walOwner reads a WAL file up to its metadata. A file is a row of frames: 8
// bytes little-endian, of which the lower 56 bits are the record's length and the
// upper 8, if their highest bit is set, hold in three bits how many bytes of
// padding follow; then a protobuf walpb.Record {1: type, 2: crc, 3: data}. The crc
// is CRC-32C over all data so far; a record of type walCRC carries its seed.
func walOwner(r io.Reader) (owner, error) {
	br := bufio.NewReader(r)
	crc, table := uint32(0), crc32.MakeTable(crc32.Castagnoli)
	for range maxWALFrames {
		var head [8]byte
		if _, err := io.ReadFull(br, head[:]); err != nil {
			return owner{}, fmt.Errorf("no metadata: %w", err)
		}
		h := binary.LittleEndian.Uint64(head[:])
		size, pad := h&(1<<56-1), uint64(0)
		if h>>63 != 0 {
			pad = h >> 56 & 7
		}
		if size == 0 || size > maxWALFrame {
			return owner{}, fmt.Errorf("a record claims %d bytes", size)
		}
		buf := make([]byte, size+pad)
		if _, err := io.ReadFull(br, buf); err != nil {
			return owner{}, fmt.Errorf("no metadata: %w", err)
		}
		rec, err := message(buf[:size])
		if err != nil {
			return owner{}, err
		}
		if rec.num[1] == walCRC {
			crc = uint32(rec.num[2])
			continue
		}
		crc = crc32.Update(crc, table, rec.bytes[3])
		if uint32(rec.num[2]) != crc {
			return owner{}, errors.New("checksum of a record is wrong")
		}
		if rec.num[1] != walMetadata {
			continue
		}
		// etcdserverpb.Metadata {1: node ID, 2: cluster ID}
		m, err := message(rec.bytes[3])
		if err != nil {
			return owner{}, err
		}
		if m.num[1] == 0 || m.num[2] == 0 {
			return owner{}, errors.New("metadata without member or cluster ID")
		}
		return owner{member: m.num[1], cluster: m.num[2]}, nil
	}
	return owner{}, errors.New("no metadata at its begin")
}

// fields are the fields 1 to 3 of a protobuf message, the last of each number.
type fields struct {
	num   [4]uint64
	bytes [4][]byte
}

// message takes a protobuf message of varints and byte strings apart
// (protobuf encoding: tag = field number << 3 | wire type).
func message(b []byte) (fields, error) {
	var f fields
	bad := errors.New("a record is not a protobuf message")
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return f, bad
		}
		b = b[n:]
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return f, bad
		}
		b = b[n:]
		id := tag >> 3
		switch tag & 7 {
		case 0:
			if id < uint64(len(f.num)) {
				f.num[id] = v
			}
		case 2:
			if v > uint64(len(b)) {
				return f, bad
			}
			if id < uint64(len(f.bytes)) {
				f.bytes[id] = b[:v]
			}
			b = b[v:]
		default:
			return f, bad
		}
	}
	return f, nil
}

// memberID is the ID that etcd gives a member of a cluster's first configuration:
// the begin of SHA-1 over its sorted peer URLs and the cluster's token. A member
// that is added later has the time in it, and cannot be foretold.
func memberID(peerURLs []string, token string) uint64 {
	urls := slices.Sorted(slices.Values(peerURLs))
	sum := sha1.Sum([]byte(strings.Join(urls, "") + token))
	return binary.BigEndian.Uint64(sum[:8])
}

// A bootstrap is what etcd makes of --initial-cluster and the token.
type bootstrap struct {
	cluster uint64
	members map[uint64]string // by ID, the name
	own     uint64            // 0: the list does not name this member
}

// foretell computes the IDs of the cluster that c describes.
func foretell(c etcdConfig) bootstrap {
	urls := map[string][]string{}
	for _, e := range list(c.initialCluster) {
		if name, u, ok := strings.Cut(e, "="); ok {
			urls[name] = append(urls[name], u)
		}
	}
	if len(urls) == 0 && c.initialCluster == "" {
		urls[c.name] = c.advertisePeer // etcd's own default
	}
	b := bootstrap{members: map[uint64]string{}}
	var ids []uint64
	for name, u := range urls {
		id := memberID(u, c.token)
		b.members[id] = name
		ids = append(ids, id)
		if name == c.name {
			b.own = id
		}
	}
	slices.Sort(ids)
	var buf []byte
	for _, id := range ids {
		buf = binary.BigEndian.AppendUint64(buf, id)
	}
	sum := sha1.Sum(buf)
	b.cluster = binary.BigEndian.Uint64(sum[:8])
	return b
}
