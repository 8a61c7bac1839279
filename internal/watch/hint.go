package watch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"cks-etcd/internal/scan"
)

const (
	// quiet is how long nothing must happen before a hint is passed on: a
	// template is a directory, a temporary file, a rename and a properties file.
	quiet = 5 * time.Second
	// patience is how long a hint waits for quiet at most.
	patience = 30 * time.Second
	// hintTime bounds waiting for the end of a hinter. It may be in a call on a
	// file system that hangs, and is then left behind.
	hintTime = time.Second
	// maxHinted bounds the stores that are watched: each takes one of the 128
	// inotify instances that a user has (fs.inotify.max_user_instances).
	maxHinted = 32
	// maxWatches bounds the directories watched in one store: the accounts, and
	// the templates that have come since the start.
	maxWatches = 256
)

// hints watches the stores until ctx ends, and sends on kick when something new
// may be there. It is no more than a hint: on NFS the kernel tells only of what
// this machine did, and a directory that cannot be watched is passed over. The
// function returned waits for the end, though not for a call that hangs.
func hints(ctx context.Context, stores []scan.Store, kick chan<- struct{}, log *slog.Logger) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan struct{}, 1)
	var all sync.WaitGroup
	for i, s := range stores {
		if i == maxHinted {
			log.Debug("stores past the first ones are not watched, only looked at in rounds", "watched", maxHinted)
			break
		}
		all.Go(func() {
			if err := hintStore(ctx, s.Path, events, log); err != nil {
				log.Debug("cannot watch the store, which is looked at in rounds", "store", s.Path, "err", err)
			}
		})
	}
	all.Go(func() { debounce(ctx, events, kick) })
	return func() {
		cancel()
		done := make(chan struct{})
		go func() { // ends with the slowest hinter
			all.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(hintTime):
		}
	}
}

// hintStore sends on events what happens at the top of one store.
func hintStore(ctx context.Context, root string, events chan<- struct{}, log *slog.Logger) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	var failed error
	watched := 0
	add := func(dir string) {
		if watched == maxWatches || ctx.Err() != nil {
			return
		}
		if err := w.Add(dir); err != nil {
			failed = errors.Join(failed, err)
			return
		}
		watched++
	}
	for _, dir := range topDirs(root) {
		add(dir)
	}
	if watched == 0 {
		return failed
	}
	log.Debug("watching the store", "store", root, "directories", watched)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-w.Errors:
			if !ok {
				return nil
			}
			log.Debug("cannot follow the store", "store", root, "err", err) // an overflow, say
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				watched = len(w.WatchList())
			}
			// Writes are left out: a download is thousands of them.
			if !e.Has(fsnotify.Create) && !e.Has(fsnotify.Remove) && !e.Has(fsnotify.Rename) {
				continue
			}
			if e.Has(fsnotify.Create) {
				// A new template is complete when its download is renamed, which shows
				// in its own directory only.
				if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
					add(e.Name)
				}
			}
			select {
			case events <- struct{}{}:
			default: // there is one already
			}
		}
	}
}

// topDirs returns the directories of a store in which templates appear: its
// root, and on secondary storage template/tmpl and the accounts below it. The
// root may itself be one of those.
func topDirs(root string) []string {
	dirs := []string{root}
	tmpl := root
	for _, below := range []string{"template/tmpl", "tmpl"} {
		dir := filepath.Join(root, below)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			tmpl = dir
			dirs = append(dirs, dir)
			break
		}
	}
	entries, err := os.ReadDir(tmpl)
	if err != nil {
		return dirs
	}
	for _, e := range entries {
		if len(dirs) == maxWatches {
			break
		}
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			dirs = append(dirs, filepath.Join(tmpl, e.Name()))
		}
	}
	return dirs
}

// debounce passes events on: one for each run of them, once it is quiet or
// patience is at its end. It ends with ctx.
func debounce(ctx context.Context, events <-chan struct{}, kick chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		}
		end := time.NewTimer(patience)
		calm := time.NewTimer(quiet)
	settle:
		for {
			select {
			case <-ctx.Done():
				return
			case <-events:
				calm.Reset(quiet)
			case <-calm.C:
				break settle
			case <-end.C:
				break settle
			}
		}
		select {
		case kick <- struct{}{}:
		default: // a round is wanted already
		}
	}
}
