package source

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

const (
	// maxDownload bounds what a server without ranges may put on the disk. A
	// Kubernetes ISO has 1 to 3 GiB.
	maxDownload = 32 << 30
	// maxDownloads is how often one is begun; there is no going on in the middle.
	maxDownloads = 3
	// downloadChunk is how much is written at once.
	downloadChunk = 256 << 10
)

// errTemp is an error of the temporary file, which no other attempt mends.
var errTemp = errors.New("cannot keep the download")

// openDownload reads all of r into a file without a name, and opens that.
func (o *Opener) openDownload(s *Source, r *remote) error {
	fail := func(err error) error {
		if errors.Is(err, errTemp) {
			return reason.New(reason.DownloadUnwritable, "%s: %w", r.name, err)
		}
		return r.codeOf(s.ctx, err)
	}
	temp, err := unnamed(o.tempDir)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", errTemp, err))
	}
	var size int64
	for try := 1; ; try++ {
		r.pinned = nil
		size, err = o.downloadOnce(s, r, temp)
		if err == nil {
			break
		}
		e, ok := errors.AsType[*attemptError](err)
		if !ok || !e.again || try == maxDownloads || s.ctx.Err() != nil || !sleep(s.ctx, max(r.web.backoff(try), min(e.after, o.timeout))) {
			temp.Close()
			return fail(err)
		}
	}
	s.id, s.size = r.identity(), size
	s.id.Size = size
	info, err := temp.Stat()
	if err != nil {
		temp.Close()
		return fail(fmt.Errorf("%w: %w", errTemp, err))
	}
	s.medium = &file{name: r.name, path: temp.Name(), id: identify(info, o.calls.Device), calls: o.calls, count: new(counter), h: temp}
	return nil
}

// unnamed creates a file that nobody else can open, and of which nothing is left
// however the process ends.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "etcd-fleet-*.iso")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// downloadOnce makes one attempt and returns the length of what came.
func (o *Opener) downloadOnce(s *Source, r *remote, temp *os.File) (int64, error) {
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("%w: %w", errTemp, err)
	}
	if err := temp.Truncate(0); err != nil {
		return 0, fmt.Errorf("%w: %w", errTemp, err)
	}
	// As long as something comes, a download may take its time.
	ctx, progress, stop := watch(s.ctx, o.timeout)
	defer stop()
	resp, err := r.ask(ctx, http.Header{})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, r.refusal(resp, 0)
	}
	if err := encoded(resp.Header); err != nil {
		return 0, bad(err)
	}
	total := resp.ContentLength
	if total > maxDownload {
		return 0, bad(fmt.Errorf("%d bytes are more than the %d allowed", total, int64(maxDownload)))
	}
	if err := room(temp, total); err != nil {
		return 0, fmt.Errorf("%w: %w", errTemp, err)
	}
	now := versionOf(resp.Header, total)
	r.pinned = &now
	n, buf := int64(0), make([]byte, downloadChunk)
	for {
		m, err := resp.Body.Read(buf)
		if m > 0 {
			progress()
			s.count.bytes.Add(int64(m))
			if n += int64(m); n > maxDownload {
				return 0, bad(fmt.Errorf("the server sends more than the %d bytes allowed", int64(maxDownload)))
			}
			if _, err := temp.Write(buf[:m]); err != nil {
				return 0, fmt.Errorf("%w: %w", errTemp, err)
			}
			o.progress(r.name, n, total)
		}
		if err == io.EOF {
			return n, nil // of a length that was announced, or the transport would say otherwise
		}
		if err != nil {
			return 0, r.transportError(ctx, fmt.Errorf("the answer ended after %d bytes: %w", n, err))
		}
	}
}

// room returns an error if there is certainly no room for so many bytes, rather
// than to fill the disk first.
func room(temp *os.File, want int64) error {
	var st unix.Statfs_t
	if err := unixfs.Retry(func() error { return unix.Fstatfs(int(temp.Fd()), &st) }); err != nil {
		return nil // the write will tell
	}
	if free := int64(st.Bavail) * int64(st.Bsize); want > free {
		return fmt.Errorf("%d bytes are needed and %d are free: %w", want, free, unix.ENOSPC)
	}
	return nil
}
