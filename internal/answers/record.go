package answers

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"cks-etcd/internal/reason"
)

// A record is a line of text: the CRC-32C of where it is kept and of its JSON,
// in hex, a space, and the JSON: an object with the version of its form.
//
//	e3069283 {"v":1,"key":"...","file":"etcd/etcd-linux-amd64.tar.gz",...}
const (
	// recordVersion changes when a field changes its meaning. Fields may be added
	// under the same version, and those that are not known are ignored.
	recordVersion = 1
	// maxRecord is far above what an answer needs, even one whose paths are as long
	// as a path can be (4096 bytes).
	maxRecord = 64 << 10
	// maxKey is the longest key that is kept as it is, for people to read: four of
	// them fit a page.
	maxKey = 1000
	// maxNotes is how many notes an answer keeps.
	maxNotes = 20

	crcSize = 8 // hex digits
)

// escaped begins text that is not valid UTF-8, and so cannot stand in JSON: what
// follows is base64. Paths are bytes, and must come back as they were.
const escaped = "\x00base64:"

// recordKey is where the record of id is kept. Records of one version of the
// rules follow each other. Neither a path nor a URL has a NUL in it.
func recordKey(rules int, id ID) []byte {
	text := id.Key + "\x00" + id.File
	if len(text) > maxKey || strings.Count(text, "\x00") > 1 {
		h := sha256.New()
		fmt.Fprintf(h, "%d:%s%s", len(id.Key), id.Key, id.File)
		text = "\x00" + hex.EncodeToString(h.Sum(nil))
	}
	return append(rulesPrefix(rules), text...)
}

func rulesPrefix(rules int) []byte {
	return append(strconv.AppendInt(nil, int64(rules), 10), 0)
}

// subjectOf returns what can be told from the key of a record alone.
func subjectOf(key []byte) Subject {
	rules, id, _ := strings.Cut(string(key), "\x00")
	var s Subject
	s.Rules, _ = strconv.Atoi(rules)
	if key, file, ok := strings.Cut(id, "\x00"); ok && key != "" {
		s.ID = ID{key, file}
	}
	return s
}

func checksum(bucket string, key, text []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, []byte(bucket))
	sum = crc32.Update(sum, table, key)
	return crc32.Update(sum, table, text)
}

func encode(bucket string, key []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err == nil && len(text) > maxRecord-crcSize-1 {
		err = fmt.Errorf("%d bytes of JSON, where %d can be kept", len(text), maxRecord)
	}
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, "%0*x ", crcSize, checksum(bucket, key, text)), text...), nil
}

func decode(bucket string, key, record []byte, v any) error {
	if len(record) > maxRecord || len(record) <= crcSize || record[crcSize] != ' ' {
		return errors.New("it is no record")
	}
	text := record[crcSize+1:]
	if sum, err := strconv.ParseUint(string(record[:crcSize]), 16, 32); err != nil || uint32(sum) != checksum(bucket, key, text) {
		return errors.New("its checksum does not match")
	}
	return json.Unmarshal(text, v)
}

type answerRecord struct {
	V int `json:"v"`
	Answer
}

// encodeAnswer returns the key and the record of a, made fit to be kept.
func encodeAnswer(a Answer) (key, record []byte, err error) {
	if !a.Value.Yes() && !a.Value.No() {
		return nil, nil, fmt.Errorf("the value %q is no answer", a.Value)
	}
	if err := a.ID().check(); err != nil {
		return nil, nil, err
	}
	if !reason.Known(a.Code) {
		return nil, nil, fmt.Errorf("unknown reason code %q", a.Code)
	}
	a.At = stamped(a.At)
	a = a.clean()
	key = recordKey(a.Rules, a.ID())
	for _, p := range a.paths() {
		*p = escape(*p)
	}
	record, err = encode(answersBucket, key, answerRecord{recordVersion, a})
	return key, record, err
}

func decodeAnswer(key, record []byte) (Answer, error) {
	var r answerRecord
	if err := decode(answersBucket, key, record, &r); err != nil {
		return Answer{}, err
	}
	a := r.Answer
	for _, p := range a.paths() {
		*p = unescape(*p)
	}
	a = a.clean()
	switch {
	case r.V != recordVersion:
		return a, fmt.Errorf("it has version %d, where %d is known", r.V, recordVersion)
	case !a.Value.Yes() && !a.Value.No() || !reason.Known(a.Code):
		return a, fmt.Errorf("it says %q, %q", a.Value, a.Code)
	case string(recordKey(a.Rules, a.ID())) != string(key):
		return a, errors.New("it is about another file")
	}
	return a, nil
}

type failureRecord struct {
	V int `json:"v"`
	Failure
}

// encodeFailure returns the key and the record of f, made fit to be kept.
func encodeFailure(f Failure) (key, record []byte, err error) {
	key = recordKey(f.Rules, f.ID())
	for _, p := range f.paths() {
		*p = escape(*p)
	}
	record, err = encode(failuresBucket, key, failureRecord{recordVersion, f})
	return key, record, err
}

func decodeFailure(key, record []byte) (Failure, error) {
	var r failureRecord
	if err := decode(failuresBucket, key, record, &r); err != nil {
		return Failure{}, err
	}
	f := r.Failure
	for _, p := range f.paths() {
		*p = unescape(*p)
	}
	f = f.clean()
	switch {
	case r.V != recordVersion:
		return f, fmt.Errorf("it has version %d, where %d is known", r.V, recordVersion)
	case f.Count < 1 || !reason.Known(f.Code):
		return f, fmt.Errorf("it says %q, %d times", f.Code, f.Count)
	case string(recordKey(f.Rules, f.ID())) != string(key):
		return f, errors.New("it is about another file")
	}
	return f, nil
}

func (id ID) check() error {
	if id.Key == "" || id.File == "" {
		return fmt.Errorf("neither the image %q nor the file %q may be empty", id.Key, id.File)
	}
	return nil
}

// clean returns a with all that is shown made one printable line each. What is
// compared with other paths and identities stays as it is.
func (a Answer) clean() Answer {
	for _, s := range []*string{
		&a.Message, &a.Version, &a.Arch, &a.SHA256, &a.Names, &a.VolumeID, &a.Digest, &a.Account, &a.Template, &a.Zone,
	} {
		*s = reason.Line(*s)
	}
	notes := a.Notes[:min(len(a.Notes), maxNotes)]
	a.Notes = nil
	for _, n := range notes {
		a.Notes = append(a.Notes, reason.Line(n))
	}
	return a
}

func (f Failure) clean() Failure {
	for _, s := range []*string{&f.Message, &f.Template, &f.Zone} {
		*s = reason.Line(*s)
	}
	return f
}

func (a *Answer) paths() []*string  { return []*string{&a.Key, &a.File, &a.From, &a.Name} }
func (f *Failure) paths() []*string { return []*string{&f.Key, &f.File, &f.From, &f.Name} }

// stamped returns t as it comes back from the file.
func stamped(t time.Time) time.Time { return t.UTC().Round(0) }

func escape(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, escaped) {
		return s
	}
	return escaped + base64.StdEncoding.EncodeToString([]byte(s))
}

func unescape(s string) string {
	text, ok := strings.CutPrefix(s, escaped)
	if !ok {
		return s
	}
	// What is no base64 is what the checksum has let through: not ours.
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return s
	}
	return string(b)
}
