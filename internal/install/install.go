//go:build linux

// Package install places the binaries of an etcd release in their directory,
// all of them or none, and never half of one.
//
// The bytes are staged in a directory beside the binaries, on the same file
// system, synced, tried out there, and renamed into place. Whenever the process
// is killed, or the machine loses power, each name holds the old file or the
// new one, whole; and since etcd itself is renamed last, a new etcd means that
// everything that came with it is in place as well.
//
// Errors are *reason.Error with one of the codes no-space, bin-dir-readonly,
// bin-noexec, bin-cannot-run and install-failed; a cancelled context comes back
// as its cause, without a code.
package install

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

const (
	// stagePrefix and stageRandom make the name of a stage directory: the prefix
	// and that many random bytes in hex. Only what has exactly this form is taken
	// for a stage that a killed run left behind.
	stagePrefix = ".etcd-nodeagent-"
	stageRandom = 8

	// nameAttempts bounds the search for a free name. One collision of 64 random
	// bits is not seen in practice; several are a broken random source.
	nameAttempts = 4

	// dirBatch is how many entries of the binaries' directory are held in memory
	// at a time, however many there are.
	dirBatch = 256

	// lockWait and lockPoll bound the wait for the lock of another stage. A process
	// that is killed while it starts a child leaves the lock, for the moment until
	// that child dies too, to the child.
	lockWait = time.Second
	lockPoll = 10 * time.Millisecond

	binMode = 0o755 // the mode of a placed binary
)

// Stage is a set of binaries on its way into a directory. It is made by Begin
// and ends with Discard; its methods must not be called at the same time.
type Stage struct {
	binDir  string   // absolute
	name    string   // of the stage directory within binDir
	bin     *os.Root // the binaries' directory: renaming it changes nothing here
	binFile *os.File // the same directory, for what os.Root does not offer
	dir     *os.Root // the stage directory
	lock    *os.File // the same directory, locked while this process lives
	files   map[string]*File
	timeout time.Duration // of one Run
}

// Begin makes a stage in binDir, which is created with mode 0755 when it is
// missing. Stages that earlier runs left there because they were killed are
// removed. A relative binDir is taken from the current directory.
//
// Two processes may install into one directory at the same time without
// removing each other's stage, after a wait of one second; whose files win is
// then undefined, so callers keep setups apart with a lock of their own.
func Begin(binDir string) (*Stage, error) {
	binDir, err := filepath.Abs(binDir)
	if err != nil {
		return nil, fault(binDir, 0, "find the current directory", err)
	}
	if err := unixfs.MakeDirs(binDir); err != nil {
		return nil, fault(binDir, 0, "create "+binDir, err)
	}
	bin, err := os.OpenRoot(binDir)
	if err != nil {
		return nil, fault(binDir, 0, "open "+binDir, err)
	}
	s := &Stage{binDir: binDir, bin: bin, files: map[string]*File{}, timeout: runTimeout}
	if s.binFile, err = bin.Open("."); err != nil {
		s.Discard()
		return nil, fault(binDir, 0, "open "+binDir, err)
	}
	s.removeStale()
	if err := s.makeStage(); err != nil {
		s.Discard()
		return nil, fault(binDir, 0, "create a directory in "+binDir, err)
	}
	return s, nil
}

// Dir returns the absolute path of the stage directory.
func (s *Stage) Dir() string { return filepath.Join(s.binDir, s.name) }

// Discard removes the stage with everything in it that was not placed. It may
// be called at any time and more than once; after a Commit what is left to
// remove is an empty directory, or binaries that were in place already.
func (s *Stage) Discard() error {
	var errs []error
	for _, f := range s.files {
		f.release()
	}
	clear(s.files)
	if s.dir != nil {
		errs = append(errs, s.dir.Close())
		s.dir = nil
	}
	if s.name != "" {
		errs = append(errs, s.bin.RemoveAll(s.name))
		s.name = ""
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
		s.lock = nil
	}
	if s.binFile != nil {
		errs = append(errs, s.binFile.Close())
		s.binFile = nil
	}
	if s.bin != nil {
		errs = append(errs, s.bin.Close())
		s.bin = nil
	}
	if err := errors.Join(errs...); err != nil {
		return reason.New(reason.InstallFailed, "cannot remove the stage in %s: %w", s.binDir, err)
	}
	return nil
}

// makeStage creates, opens and locks the stage directory.
func (s *Stage) makeStage() error {
	for attempt := 1; ; attempt++ {
		name := stagePrefix + unixfs.RandomHex(stageRandom)
		err := s.bin.Mkdir(name, 0o700)
		if errors.Is(err, fs.ErrExist) && attempt < nameAttempts {
			continue
		}
		if err != nil {
			return err
		}
		s.name = name
		break
	}
	var err error
	if s.dir, err = s.bin.OpenRoot(s.name); err != nil {
		return err
	}
	if s.lock, err = s.dir.Open("."); err != nil {
		return err
	}
	// The lock tells a stage in use from one whose process is dead. A file system
	// without flock(2) has no such protection, and needs none: see Begin.
	if err := unixfs.TryLock(s.lock); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.ENOLCK) {
		return err
	}
	return nil
}

// removeStale removes the stages of dead processes. What cannot be removed is
// left alone: an obstacle that matters shows again, with a better message, when
// the new stage is made.
func (s *Stage) removeStale() {
	var stale []string
	for {
		names, err := s.binFile.Readdirnames(dirBatch)
		for _, name := range names {
			if isStageName(name) {
				stale = append(stale, name)
			}
		}
		if err != nil || len(names) == 0 {
			break
		}
	}
	slices.Sort(stale)
	deadline := time.Now().Add(lockWait)
	for _, name := range stale {
		if s.isStale(name, deadline) {
			s.bin.RemoveAll(name) // a link inside is removed itself, never followed
		}
	}
}

// isStale reports whether name is a directory, not a link to one, that
// belongs to this user and is not locked by a living process at the deadline.
func (s *Stage) isStale(name string, deadline time.Time) bool {
	f, err := s.openNoFollow(name, unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || int(st.Uid) != os.Geteuid() {
		return false
	}
	for {
		if err := unixfs.TryLock(f); !errors.Is(err, unix.EWOULDBLOCK) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(lockPoll)
	}
}

// openNoFollow opens name in the binaries' directory for reading, unless it is
// a link, without waiting for whatever it is. os.Root would follow a link that
// stays in the directory, O_NOFOLLOW or not.
func (s *Stage) openNoFollow(name string, flags int) (*os.File, error) {
	var fd int
	err := unixfs.Retry(func() (err error) {
		fd, err = unix.Openat(int(s.binFile.Fd()), name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// isStageName reports whether name has the form of a stage directory's name.
func isStageName(name string) bool {
	tail, ok := strings.CutPrefix(name, stagePrefix)
	if !ok || len(tail) != 2*stageRandom {
		return false
	}
	_, err := hex.DecodeString(tail)
	return err == nil && tail == strings.ToLower(tail)
}
