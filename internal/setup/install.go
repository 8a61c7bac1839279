package setup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"cks-etcd/internal/archive"
	"cks-etcd/internal/install"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/media"
	"cks-etcd/internal/reason"
)

const (
	// readAttempts is how often an archive whose medium fails while it is read
	// is read again. A drive that is slow to settle after the attach recovers at
	// once; a bad sector never does.
	readAttempts = 3

	// readPause lies between two such attempts.
	readPause = 2 * time.Second

	// verifyTimeout bounds one reading of the archive as a whole: a drive that
	// delivers each piece just in time could otherwise take hours.
	verifyTimeout = 10 * time.Minute

	// oneLook is the least time given to finding the ISO: enough for a look at
	// what is attached, when the caller does not want to wait at all.
	oneLook = 2 * time.Second
)

// install finds the ISO, verifies the archive while its binaries are staged,
// and places them. It returns the names of the binaries that changed. Where an
// earlier setup placed them already, and failed later, an ISO that is there is
// used again, but none is waited for: the cloud may have detached it.
func (r *run) install(ctx context.Context) (changed []string, err error) {
	var stage *install.Stage
	defer func() {
		if stage != nil {
			if derr := stage.Discard(); derr != nil {
				r.log.Warn("cannot remove the stage", "err", derr)
			}
		}
	}()

	isoWait := max(r.ISOWait, oneLook)
	if r.placed != nil {
		isoWait = oneLook
	}
	wait, cancel := context.WithTimeout(ctx, isoWait)
	defer cancel()
	for attempt := 1; ; attempt++ {
		var found []*media.Medium
		err := r.step("find", "waiting for the Kubernetes ISO", func() (string, error) {
			var err error
			found, err = r.env.Finder.Find(wait)
			if code := reason.Of(err); r.placed != nil && (code == reason.ISONotFound || code == reason.ISONoDrive) {
				return "no ISO is there; going on with the etcd that an earlier setup installed", nil
			}
			return describe(found), err
		})
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			r.state.Archive, r.state.Binaries = r.placed.Archive, r.placed.Binaries
			return nil, nil
		}
		err = r.step("verify", "verifying the etcd archive", func() (string, error) {
			if stage, err = install.Begin(r.BinDir); err != nil {
				return "", err
			}
			m, res, err := r.verifyAny(ctx, stage, found)
			if err != nil {
				return "", err
			}
			r.record(m, res)
			if res.Trailing > 0 {
				r.log.Warn("bytes after the end of the archive are ignored", "where", m.Where, "bytes", res.Trailing)
			}
			return fmt.Sprintf("etcd %s for %s, sha256 %s", cmp.Or(res.Version, "of unknown version"), res.Arch, res.SHA256), nil
		})
		changedMedium := false
		for _, m := range found {
			m.Close()
			changedMedium = changedMedium || err != nil && !m.Unchanged(ctx)
		}
		if err == nil {
			break
		}
		if stage == nil { // not a fault of the medium
			return nil, err
		}
		// A medium that was swapped while it was read says nothing about the one
		// that is there now; one that failed to be read may recover. Both get
		// another look within the wait, anything else is the answer.
		unread := reason.Lookup(reason.Of(err)).Class == reason.Unknown
		if ctx.Err() != nil && changedMedium {
			// No time is left to tell whether this was the medium's fault.
			return nil, reason.New(reason.Interrupted, "%w", context.Cause(ctx))
		}
		if ctx.Err() != nil || !changedMedium && (!unread || attempt >= readAttempts) {
			return nil, err
		}
		r.log.Warn("looking again", "err", reason.Line(err.Error()), "medium_changed", changedMedium)
		if err := stage.Discard(); err != nil {
			r.log.Warn("cannot remove the stage", "err", err)
		}
		stage = nil
		select {
		case <-time.After(readPause):
		case <-wait.Done():
			if changedMedium && !unread {
				err = reason.New(reason.ArchiveUnreadable, "the medium changed while it was read: %w", err)
			}
			return nil, err
		}
	}

	err = r.step("install", "installing etcd", func() (string, error) {
		out, err := stage.Run(ctx, "etcd", "--version")
		if err != nil {
			return "", err
		}
		if changed, err = stage.Commit(ctx); err != nil {
			return "", err
		}
		first, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
		if len(changed) == 0 {
			return fmt.Sprintf("%s is already in %s", reason.Line(first), r.BinDir), nil
		}
		return fmt.Sprintf("%s in %s (%s)", reason.Line(first), r.BinDir, strings.Join(changed, ", ")), nil
	})
	return changed, err
}

// verifyAny verifies the archives of found and stages the binaries of one of
// them: the intact one, or of several intact ones the newest. When none is
// intact the error is that of the first one that gave a definite answer.
func (r *run) verifyAny(ctx context.Context, stage *install.Stage, found []*media.Medium) (*media.Medium, *archive.Result, error) {
	if len(found) == 1 {
		res, err := r.verify(ctx, found[0], sinkOf(stage))
		return found[0], res, err
	}
	rank := archive.NewTempSink(stage.Dir())
	defer rank.Close()
	var best *media.Medium
	var bestRes *archive.Result
	var failed error
	for _, m := range found {
		res, err := r.verify(ctx, m, rank)
		if err != nil && ctx.Err() != nil { // the next ISO may be intact
			return nil, nil, reason.New(reason.Interrupted, "%w", context.Cause(ctx))
		}
		if err != nil {
			r.log.Warn("this ISO is not usable", "where", m.Where, "err", reason.Line(err.Error()))
			if failed == nil || reason.Lookup(reason.Of(failed)).Class == reason.Unknown {
				failed = err
			}
			continue
		}
		if best == nil || archive.CompareVersions(res.Version, bestRes.Version) > 0 {
			best, bestRes = m, res
		}
	}
	if best == nil {
		return nil, nil, failed
	}
	r.log.Info("choosing one of several ISOs with etcd", "where", best.Where, "etcd", bestRes.Version)
	res, err := r.verify(ctx, best, sinkOf(stage))
	return best, res, err
}

// verify reads the archive of m once, from its first to its last byte.
func (r *run) verify(ctx context.Context, m *media.Medium, sink archive.Sink) (*archive.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	want := archive.Want{Arch: r.Arch, SHA256: r.SHA256}
	if want.SHA256 == "" {
		want.SHA256 = r.sidecar(m)
	}
	// A read that hangs in the kernel is abandoned when the agent is told to stop.
	defer context.AfterFunc(ctx, m.Close)()
	rc, err := m.Open()
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	res, err := archive.Verify(ctx, rc, want, sink)
	if err != nil {
		// The message begins with the code's words, whichever layer failed, and
		// names file and device where they are what failed.
		var e *reason.Error
		switch {
		case !errors.As(err, &e):
			return nil, err
		case strings.HasPrefix(string(e.Code), "archive-"):
			return nil, &reason.Error{Code: e.Code, Hint: e.Hint, Err: fmt.Errorf("%s on the ISO in %s: %w", r.Archive, m.Where, e.Err)}
		}
		return nil, e
	}
	return res, nil
}

// sidecar returns the digest that a file beside the archive promises, or "".
// A sidecar that cannot be read or understood is no reason to refuse: gzip's
// own checksum still stands guard.
func (r *run) sidecar(m *media.Medium) string {
	base := path.Base(r.Archive)
	for _, name := range []string{base + ".sha256", "SHA256SUMS"} {
		b, err := m.ReadSidecar(name)
		if err == nil {
			var sum string
			if sum, err = archive.ParseSums(bytes.NewReader(b), base); err == nil {
				r.log.Info("the archive's digest is checked", "where", m.Where, "sidecar", name)
				return sum
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("cannot use the digest beside the archive", "where", m.Where, "sidecar", name, "err", err)
		}
	}
	return ""
}

// record keeps what was verified for the state file.
func (r *run) record(m *media.Medium, res *archive.Result) {
	r.state.Archive = &marker.Archive{
		Where: m.Where, Path: r.Archive, VolumeID: m.VolumeID, Names: m.Names,
		SHA256: res.SHA256, EtcdVersion: res.Version, Arch: res.Arch,
	}
	r.state.Binaries = nil
	for _, b := range res.Binaries {
		r.state.Binaries = append(r.state.Binaries, marker.Binary{Name: b.Name, SHA256: b.SHA256})
	}
}

// sinkOf makes a stage an archive.Sink: the two packages do not know each other.
func sinkOf(s *install.Stage) archive.Sink {
	return sinkFunc(func(name string, size int64) (archive.Staged, error) { return s.Create(name, size) })
}

type sinkFunc func(name string, size int64) (archive.Staged, error)

func (f sinkFunc) Create(name string, size int64) (archive.Staged, error) { return f(name, size) }

func describe(found []*media.Medium) string {
	var s []string
	for _, m := range found {
		s = append(s, fmt.Sprintf("%s, volume id %q, %s names", m.Where, m.VolumeID, m.Names))
	}
	return strings.Join(s, "; ")
}

func fileDigest(dir, name string) (string, error) {
	f, err := os.OpenInRoot(dir, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
