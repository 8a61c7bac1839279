package answers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

const (
	killRuns  = 200
	killShort = 20 // with -short
	// killWindow is when a child is killed after it began: some writes are done.
	killWindow = 80 * time.Millisecond
	// killKinds is how many answers the children write, over and over: pages are
	// freed and used again, which is where an unsafe order of writes would show.
	killKinds = 400

	writers      = 8
	writersPuts  = 40
	startedLine  = "started"
	acknowledged = "ack "
)

// child is what another process does with the file at path.
func child(job, path string) error {
	ctx := context.Background()
	verb, arg, _ := strings.Cut(job, ":")
	n, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	switch verb {
	case "forever":
		return putForever(ctx, path, n)
	case "share":
		return share(ctx, path, n)
	case "readonly":
		return tryReadOnly(ctx, path)
	case "denied":
		_, err := Open(ctx, path, Options{Rebuild: true})
		if reason.Of(err) != reason.AnswersUnwritable || !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("got %w, want that it is denied", err)
		}
		return nil
	}
	return fmt.Errorf("no job %q", job)
}

// share writes answers that nobody else does, and a failure that all others do.
func share(ctx context.Context, path string, n int) error {
	s, err := Open(ctx, path, Options{Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	for i := range writersPuts {
		if err := s.Put(ctx, included(n*writersPuts+i)); err != nil {
			return err
		}
		if err := s.Fail(ctx, failed(-1)); err != nil {
			return err
		}
		if _, ok, err := s.Get(ctx, key(n*writersPuts+i), inspect.EtcdArchive); err != nil || !ok {
			return fmt.Errorf("answer %d: %v, %v", i, ok, err)
		}
	}
	return s.Close()
}

// tryReadOnly reads the file at path, or its absence, and returns an error
// unless a write is refused with its reason.
func tryReadOnly(ctx context.Context, path string) error {
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	_, statErr := os.Lstat(path)
	for range 2 {
		if _, ok, err := s.Get(ctx, key(1), inspect.EtcdArchive); err != nil || ok != (statErr == nil) {
			return fmt.Errorf("got %v, %w", ok, err)
		}
		err := s.Put(ctx, included(2))
		if reason.Of(err) != reason.AnswersUnwritable || !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) {
			return fmt.Errorf("writing: %w", err)
		}
		_, err = s.Forget(ctx, func(Subject) bool { return true })
		if statErr == nil && reason.Of(err) != reason.AnswersUnwritable {
			return fmt.Errorf("forgetting: %w", err)
		}
	}
	return s.Close()
}

// putForever writes one generation of answers after the other, some at a time,
// and says so of each batch.
func putForever(ctx context.Context, path string, generation int) error {
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	fmt.Println(startedLine)
	for at := 0; ; generation++ {
		batch := make([]Answer, 0, 16)
		for range 1 + rand.IntN(cap(batch)) {
			a := included(at % killKinds)
			a.Size = int64(generation)
			a.Notes = []string{strings.Repeat("n", rand.IntN(900))} // records change their size
			batch = append(batch, a)
			at++
		}
		if err := s.Put(ctx, batch...); err != nil {
			return err
		}
		var ids []string
		for _, a := range batch {
			ids = append(ids, a.Template)
		}
		fmt.Printf("%s%d %s\n", acknowledged, generation, strings.Join(ids, " "))
	}
}

// spawn starts a child and returns its output.
func spawn(t *testing.T, job, path string) (*exec.Cmd, *bufio.Reader, *strings.Builder) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+job+" "+path)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out), &errs
}

// TestKilled kills a process that writes answers, at random instants, again and
// again. Each time the file opens, and what the process said was kept is there,
// in that version or a later one.
func TestKilled(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	runs := killRuns
	if testing.Short() {
		runs = killShort
	}
	path := newPath(t)
	kept := make(map[string]int64) // generation by template, as acknowledged
	generation, acks, unsaid := 1, 0, 0
	for run := range runs {
		generation++
		cmd, out, errs := spawn(t, fmt.Sprintf("forever:%d", generation), path)
		if line, err := out.ReadString('\n'); err != nil || line != startedLine+"\n" {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("run %d: got %q, %v\n%s", run, line, err, errs)
		}
		time.AfterFunc(rand.N(killWindow), func() { cmd.Process.Kill() })
		for {
			line, err := out.ReadString('\n')
			if err != nil {
				break // a line that was cut short was not said
			}
			fields := strings.Fields(strings.TrimPrefix(line, acknowledged))
			n, err := strconv.Atoi(fields[0])
			if err != nil {
				t.Fatal(err)
			}
			for _, template := range fields[1:] {
				kept[template] = int64(n)
			}
			generation = n
			acks++
		}
		if cmd.Wait(); errs.Len() > 0 {
			t.Fatalf("run %d: %s", run, errs)
		}

		log, lines := logged()
		s, err := Open(t.Context(), path, Options{Log: log})
		if err != nil {
			t.Fatalf("run %d: %v", run, err)
		}
		answers, _, err := s.All(t.Context())
		if err != nil || lines.Len() > 0 {
			t.Fatalf("run %d: %v\n%s", run, err, lines)
		}
		got := make(map[string]int64)
		for _, a := range answers {
			got[a.Template] = a.Size
		}
		for template, n := range kept {
			if got[template] < n {
				t.Fatalf("run %d: answer %s of generation %d was kept, and is of %d now", run, template, n, got[template])
			}
		}
		if !maps.Equal(got, kept) {
			unsaid++ // killed between the end of a write and its line
		}
		kept = got // what was seen once must stay as well
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		generation++
	}
	left, err := filepath.Glob(path + newMark + "*")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills, %d writes acknowledged, %d times killed between a write and its line, %d unfinished files left", runs, acks, unsaid, len(left))
	if acks < runs/4 { // several a run, unless the machine is busy
		t.Errorf("got %d writes in %d runs, want more: the kills hit nothing", acks, runs)
	}
}

// TestKilledAtFirst kills processes that make the file.
func TestKilledAtFirst(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	made := 0
	for run := range 20 {
		path := newPath(t)
		cmd, out, _ := spawn(t, "forever:1", path)
		if _, err := out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(60 * time.Millisecond)) // an instant, not a wait for something
		cmd.Process.Kill()
		cmd.Wait()
		if _, err := os.Lstat(path); err == nil {
			made++
		}
		s, err := Open(t.Context(), path, Options{})
		if err == nil {
			err = s.Put(t.Context(), included(1))
		}
		if err != nil {
			t.Fatalf("run %d: %v", run, err)
		}
	}
	t.Logf("the file was made in %d of 20 runs", made)
}

// TestManyWriters has processes that begin at once and share a file that none of
// them has made.
func TestManyWriters(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	for _, n := range []int{2, writers} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path := newPath(t)
			var cmds []*exec.Cmd
			var errs []*strings.Builder
			start := time.Now()
			for i := range n {
				cmd, _, err := spawn(t, fmt.Sprintf("share:%d", i), path)
				cmds, errs = append(cmds, cmd), append(errs, err)
			}
			for i, cmd := range cmds {
				if err := cmd.Wait(); err != nil {
					t.Errorf("process %d: %v\n%s", i, err, errs[i])
				}
			}
			t.Logf("%d processes, %d writes: %v", n, 2*n*writersPuts, time.Since(start).Round(time.Millisecond))
			answers, failures, err := open(t, path, Options{}).All(t.Context())
			if err != nil || len(answers) != n*writersPuts {
				t.Errorf("got %d answers, %v, want %d", len(answers), err, n*writersPuts)
			}
			if len(failures) != 1 || failures[0].Count != n*writersPuts {
				t.Errorf("got %+v, want one failure counted %d times", failures, n*writersPuts)
			}
		})
	}
}

// TestManyReaders has one store used by many goroutines, and another writing.
func TestManyReaders(t *testing.T) {
	path := newPath(t)
	s, other := open(t, path, Options{}), open(t, path, Options{})
	put(t, s, included(0))
	errs := make(chan error)
	for i := range 16 {
		go func() {
			store := []*Store{s, other}[i%2]
			for j := range 10 {
				if i < 4 {
					if err := store.Put(context.Background(), included(100*i+j)); err != nil {
						errs <- err
						return
					}
				}
				if _, ok, err := store.Get(context.Background(), key(0), inspect.EtcdArchive); !ok || err != nil {
					errs <- fmt.Errorf("%v, %w", ok, err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range 16 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if answers, _, err := s.All(t.Context()); err != nil || len(answers) != 40 {
		t.Errorf("got %d answers, %v, want 40", len(answers), err)
	}
}
