package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// fakeSystem is a machine whose block devices are regular files.
// TestFakeSystem holds it to the contract of the real one.
type fakeSystem struct {
	mu     sync.Mutex
	drives map[string]*fakeDrive // by path
	points map[string]fakeMount  // by mount point
	fail   error                 // of listing devices
	opens  map[string]int        // devices opened so far, by path
	open   int                   // disks open now
	lists  int
}

type fakeDrive struct {
	num    devnum
	drive  bool
	image  string        // file; "" when empty
	start  int64         // sector of the last session
	err    error         // of opening
	broken string        // opening panics with it; "": it does not
	eioAt  int64         // reads that end past it fail; 0: none
	hang   chan struct{} // opens and reads block until it is closed; nil: none
	hangAt int64         // only reads that end past it block; 0: opens block too
}

type fakeMount struct {
	num devnum
	dir string
}

func newFakeSystem() *fakeSystem {
	return &fakeSystem{
		drives: make(map[string]*fakeDrive),
		points: make(map[string]fakeMount),
		opens:  make(map[string]int),
	}
}

// add adds a device as the kernel would number it, and returns it.
func (s *fakeSystem) add(path, image string) *fakeDrive {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &fakeDrive{num: devnum{252, uint32(len(s.drives))}, image: image}
	if strings.Contains(path, "/sr") {
		d.num.major, d.drive = 11, true
	}
	s.drives[path] = d
	return d
}

// change changes a device, atomically.
func (s *fakeSystem) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *fakeSystem) openCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *fakeSystem) devices() ([]device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.fail != nil {
		return nil, s.fail
	}
	var list []device
	for path, d := range s.drives {
		list = append(list, device{path: path, num: d.num, drive: d.drive})
	}
	slices.SortFunc(list, func(a, b device) int { return strings.Compare(a.path, b.path) })
	return list, nil
}

func (s *fakeSystem) openDevice(d device) (disk, error) {
	s.mu.Lock()
	s.opens[d.path]++
	f := s.drives[d.path]
	if f == nil || f.num != d.num {
		s.mu.Unlock()
		return nil, errNoDevice
	}
	now := *f
	s.mu.Unlock()
	if now.hang != nil && now.hangAt == 0 {
		<-now.hang
	}
	switch {
	case now.broken != "":
		panic(now.broken)
	case now.err != nil:
		return nil, now.err
	case now.image == "":
		return nil, errNoMedium
	}
	file, err := os.Open(now.image)
	if err != nil {
		return nil, err
	}
	i, err := file.Stat()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	return &fakeDisk{File: file, bytes: i.Size(), sys: s, drive: now}, nil
}

type fakeDisk struct {
	*os.File
	bytes int64
	sys   *fakeSystem
	drive fakeDrive
}

func (d *fakeDisk) size() int64    { return d.bytes }
func (d *fakeDisk) session() int64 { return d.drive.start }

func (d *fakeDisk) ReadAt(p []byte, off int64) (int, error) {
	end := off + int64(len(p))
	if d.drive.hang != nil && end > d.drive.hangAt {
		<-d.drive.hang
	}
	if d.drive.eioAt > 0 && end > d.drive.eioAt {
		return 0, syscall.EIO
	}
	return d.File.ReadAt(p, off)
}

func (d *fakeDisk) Close() error {
	d.sys.mu.Lock()
	d.sys.open--
	d.sys.mu.Unlock()
	return d.File.Close()
}

func (s *fakeSystem) mounts() ([]mount, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []mount
	for point, m := range s.points {
		list = append(list, mount{point, m.num})
	}
	return list, nil
}

func (s *fakeSystem) openMount(m mount) (tree, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.points[m.point]
	if !ok || have.num != m.num {
		return nil, errNoDevice
	}
	return fakeTree{os.DirFS(have.dir).(fs.StatFS)}, nil
}

type fakeTree struct{ fs.StatFS }

func (fakeTree) Close() error { return nil }

// fakeBench drives a fakeSystem through the contract.
type fakeBench struct{ sys *fakeSystem }

func (b fakeBench) system() system { return b.sys }
func (b fakeBench) dir() string    { return "/dev" }
func (b fakeBench) node(t *testing.T, name string) {
	b.sys.add("/dev/"+name, "")
}
func (b fakeBench) insert(t *testing.T, name, image string) {
	b.sys.change(func() { b.sys.drives["/dev/"+name].image = image })
}
func (b fakeBench) eject(t *testing.T, name string) { b.insert(t, name, "") }
func (b fakeBench) remove(t *testing.T, name string) {
	b.sys.change(func() { delete(b.sys.drives, "/dev/"+name) })
}
func (b fakeBench) cut(t *testing.T, name string, at int64) {
	b.sys.change(func() { b.sys.drives["/dev/"+name].eioAt = at })
}

func TestFakeSystem(t *testing.T) {
	testSystem(t, func(*testing.T) bench { return fakeBench{newFakeSystem()} })
}

// A bench is a machine with drives that a test can change.
type bench interface {
	system() system
	dir() string                                 // of the device nodes
	node(t *testing.T, name string)              // adds an empty drive
	insert(t *testing.T, name, image string)     // puts a medium into an empty drive
	eject(t *testing.T, name string)             // takes it out
	remove(t *testing.T, name string)            // takes the drive away
	cut(t *testing.T, name string, offset int64) // makes reads past offset fail
}

// testSystem is the contract of system, for its devices.
func testSystem(t *testing.T, setUp func(*testing.T) bench) {
	content := func(t *testing.T, fill byte) (string, []byte) {
		b := make([]byte, 256<<10)
		for i := range b {
			b[i] = fill + byte(i>>11)
		}
		name := t.TempDir() + "/medium"
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name, b
	}
	find := func(t *testing.T, b bench, name string) device {
		t.Helper()
		list, err := b.system().devices()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			if d.path == b.dir()+"/"+name {
				return d
			}
		}
		t.Fatalf("%s is not in %v", name, list)
		return device{}
	}
	read := func(t *testing.T, b bench, d device, want []byte) {
		t.Helper()
		dk, err := b.system().openDevice(d)
		if err != nil {
			t.Fatal(err)
		}
		defer dk.Close()
		if got := dk.size(); got != int64(len(want)) {
			t.Errorf("size = %d, want %d", got, len(want))
		}
		if got := dk.session(); got != 0 {
			t.Errorf("session = %d where there is one", got)
		}
		got := make([]byte, len(want))
		if n, err := dk.ReadAt(got, 0); n != len(want) || err != nil && !errors.Is(err, io.EOF) || string(got) != string(want) {
			t.Errorf("read %d bytes, %v; equal %v", n, err, string(got) == string(want))
		}
		if n, err := dk.ReadAt(got, int64(len(want))); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("read at the end = %d, %v", n, err)
		}
		if n, err := dk.ReadAt(got, int64(len(want)-2048)); n != 2048 || !errors.Is(err, io.EOF) {
			t.Errorf("read across the end = %d, %v", n, err)
		}
	}

	t.Run("list", func(t *testing.T) {
		b := setUp(t)
		b.node(t, "vdx")
		b.node(t, "sr0")
		list, err := b.system().devices()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range list {
			got += fmt.Sprintf("%s %v\n", strings.TrimPrefix(d.path, b.dir()), d.drive)
		}
		if want := "/sr0 true\n/vdx false\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("empty", func(t *testing.T) {
		b := setUp(t)
		b.node(t, "sr0")
		if _, err := b.system().openDevice(find(t, b, "sr0")); !errors.Is(err, errNoMedium) {
			t.Errorf("open = %v, want %v", err, errNoMedium)
		}
	})
	t.Run("change", func(t *testing.T) {
		b := setUp(t)
		b.node(t, "sr0")
		d := find(t, b, "sr0")
		for fill := range byte(3) {
			name, want := content(t, fill*50)
			b.insert(t, "sr0", name)
			read(t, b, d, want)
			b.eject(t, "sr0")
			if _, err := b.system().openDevice(d); !errors.Is(err, errNoMedium) {
				t.Errorf("open after eject = %v", err)
			}
		}
	})
	t.Run("gone", func(t *testing.T) {
		b := setUp(t)
		b.node(t, "sr0")
		d := find(t, b, "sr0")
		b.remove(t, "sr0")
		if _, err := b.system().openDevice(d); !errors.Is(err, errNoDevice) {
			t.Errorf("open = %v, want %v", err, errNoDevice)
		}
		if list, err := b.system().devices(); len(list) > 0 || err != nil {
			t.Errorf("list = %v, %v", list, err)
		}
	})
	t.Run("another device under the name", func(t *testing.T) {
		b := setUp(t)
		b.node(t, "sr0")
		d := find(t, b, "sr0")
		d.num.minor += 7
		if _, err := b.system().openDevice(d); !errors.Is(err, errNoDevice) {
			t.Errorf("open = %v, want %v", err, errNoDevice)
		}
	})
	t.Run("read error", func(t *testing.T) {
		b := setUp(t)
		b.node(t, "sr0")
		name, want := content(t, 9)
		b.insert(t, "sr0", name)
		b.cut(t, "sr0", 64<<10)
		dk, err := b.system().openDevice(find(t, b, "sr0"))
		if err != nil {
			t.Fatal(err)
		}
		defer dk.Close()
		got := make([]byte, 2048)
		if _, err := dk.ReadAt(got, 16<<10); err != nil || string(got) != string(want[16<<10:][:2048]) {
			t.Errorf("read before the fault: %v", err)
		}
		if _, err := dk.ReadAt(got, 128<<10); !errors.Is(err, syscall.EIO) {
			t.Errorf("read past the fault = %v, want %v", err, syscall.EIO)
		}
	})
}
