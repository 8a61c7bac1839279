// Package answers remembers what was found on ISO images, so that each image is
// looked at once, and how often looking at one has failed.
//
// Everything is in one file, a bbolt database. It is open, and locked, only
// while a method runs: a daemon and any number of commands share it. A change
// that was made is on the disk before its method returns.
//
// # Damage
//
// The file is not believed. bbolt maps its file and follows what it reads there,
// so a damaged one can crash a program, hold it forever, or lack a part without
// anybody noticing. Every page is therefore read and checked before bbolt sees
// the file, and again whenever another process has changed it. A record carries
// a checksum of its own: one that does not match is named in the log, left out,
// and replaced by the next answer; the others stay.
//
// # Errors
//
// Every error is a *reason.Error: answers-busy when another process has the
// file, answers-damaged, answers-newer, answers-unwritable when a change could
// not be made (what was there before stays readable), interrupted when the
// context ended, and internal-error for what the caller must not ask.
package answers

import (
	"path/filepath"
	"time"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// An ID names what an answer or a failure is about: one file on one image.
type ID struct {
	Key  string `json:"key"`  // identity of the image, as source.Identity gives it
	File string `json:"file"` // on the image
}

// An Answer says whether a file is on an image, for good: an image that changes
// gets another Key.
type Answer struct {
	Key   string        `json:"key"`   // identity of the image
	File  string        `json:"file"`  // that was asked for
	Rules int           `json:"rules"` // it was checked by; 0 in Put: inspect.Rules
	Value inspect.Value `json:"value"` // included, missing or broken

	Code       reason.Code `json:"code"`           // why
	Message    string      `json:"message"`        // the same in one line
	Size       int64       `json:"size"`           // of the image in bytes
	Version    string      `json:"version"`        // etcd's, "3.5.21"; empty: not known
	Arch       string      `json:"arch"`           // as GOARCH; empty: not known
	SHA256     string      `json:"sha256"`         // of the archive; empty: not known
	Deep       bool        `json:"deep"`           // the whole archive was verified
	Names      string      `json:"names"`          // name tree of the image: "Rock Ridge"
	VolumeID   string      `json:"volume_id"`      // of the image
	Digest     string      `json:"digest"`         // of the volume descriptors
	Kubernetes bool        `json:"kubernetes"`     // the image is one for Kubernetes
	Notes      []string    `json:"notes,omitzero"` // one line each
	At         time.Time   `json:"at"`             // when it was found
	From       string      `json:"from"`           // path or URL of the copy that was read

	Name     string `json:"name"`     // of the image where it is stored
	Account  string `json:"account"`  // in CloudStack; empty: none
	Template string `json:"template"` // id in CloudStack; empty: none
	Zone     string `json:"zone"`     // of the copy that was read
}

// ID returns what the answer is about.
func (a Answer) ID() ID { return ID{a.Key, a.File} }

// A Failure says that a file could not be asked for, and how often.
type Failure struct {
	Key   string `json:"key"`   // identity of the image, or "at:" and the location where it has none
	File  string `json:"file"`  // that was asked for
	Rules int    `json:"rules"` // as in Answer
	Count int    `json:"count"` // tries that failed, one after the other

	Code    reason.Code `json:"code"` // of the last try
	Message string      `json:"message"`
	First   time.Time   `json:"first"`         // try that failed
	At      time.Time   `json:"at"`            // last one
	Next    time.Time   `json:"next,omitzero"` // try; zero: not before the image changes
	From    string      `json:"from"`          // path or URL of the copy

	Name     string `json:"name"`
	Template string `json:"template"`
	Zone     string `json:"zone"`
}

// ID returns what the failure is about.
func (f Failure) ID() ID { return ID{f.Key, f.File} }

// A Subject is what Forget tells apart.
type Subject struct {
	ID
	Rules   int  // the record was made under
	Failure bool // it is a failure, not an answer
	// The rest is empty for a record that cannot be read.
	From, Name, Account, Template, Zone string
	At                                  time.Time
}

// DefaultPath is where answers are kept unless the user says otherwise:
// /var/lib/etcd-fleet for root, $XDG_STATE_HOME/etcd-fleet (by default below
// ~/.local/state) for anybody else. It is empty when there is no home either.
func DefaultPath(euid int, getenv func(string) string) string {
	const name = "etcd-fleet/answers.db"
	if euid == 0 {
		return filepath.Join("/var/lib", name)
	}
	// A relative path is to be ignored (XDG Base Directory Specification).
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/state", name)
	}
	return ""
}
