package isofs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/isofs/isotest"

	"github.com/kdomanski/iso9660"
)

// Rock Ridge 1.12 and other extensions that xorriso's own commands switch on.
func TestTruthXorrisoCompliance(t *testing.T) {
	src := t.TempDir()
	oddSource(t, src)
	for _, compliance := range []string{
		"new_rr", // RRIP 1.12: PX of 44 bytes, NM in the first two records too
		"rec_mtime", "aaip_susp_1_10", "iso_9660_1999", "iso_9660_level=1", "deep_paths_off", "omit_version", "7bit_ascii",
	} {
		t.Run(compliance, func(t *testing.T) {
			iso := filepath.Join(t.TempDir(), "truth.iso")
			tool(t, "xorriso", "-report_about", "FATAL", "-outdev", iso, "-compliance", compliance, "-map", src, "/", "-commit")
			img := openImage(t, iso)
			names := tree9660(t, img)
			compareSource(t, img, names, src, truthCase{names: isofs.RockRidge})
			compareList(t, "bsdtar", bsdtar(t, iso, isofs.RockRidge), names, nil)
		})
	}
}

// An image by a writer in Go, which has neither Rock Ridge nor Joliet.
func TestTruthKdomanski(t *testing.T) {
	src := t.TempDir()
	kubernetesSource(t, src)
	w, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Cleanup()
	if err := w.AddLocalDirectory(src, "/"); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := w.WriteTo(&b, "CDROM"); err != nil {
		t.Fatal(err)
	}
	iso := filepath.Join(t.TempDir(), "truth.iso")
	write(t, iso, b.Bytes())
	img := openImage(t, iso)
	if got := img.Names(); got != isofs.Plain {
		t.Errorf("Names() = %v, want %v", got, isofs.Plain)
	}
	if got := img.VolumeID(); got != "CDROM" {
		t.Errorf("VolumeID() = %q, want %q", got, "CDROM")
	}
	names := tree9660(t, img)
	compareContents(t, img, names, src)
	// bsdtar lists nothing at all for this writer.
	compareList(t, "isoinfo", isoinfo(t, iso, isofs.Plain), names, nil)
}

// Sessions. On a disk or in a file Linux reads the volume descriptors at
// sector 16 only.
func TestTruthSessions(t *testing.T) {
	first, second, both := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{first, both} {
		kubernetesSource(t, dir)
	}
	for _, dir := range []string{second, both} {
		write(t, filepath.Join(dir, "second/only"), []byte("second session"))
	}
	rr := truthCase{names: isofs.RockRidge}

	// start is where the second session begins; beyond 4 GiB it puts all of
	// its directories there.
	for _, start := range []int64{1600, 2_200_000} {
		t.Run(fmt.Sprintf("genisoimage, second at %d", start), func(t *testing.T) {
			dir := t.TempDir()
			one, two, iso := filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(dir, "truth.iso")
			tool(t, "genisoimage", "-quiet", "-R", "-J", "-o", one, first)
			tool(t, "genisoimage", "-quiet", "-R", "-J", "-C", fmt.Sprintf("0,%d", start), "-M", one, "-o", two, second)
			f, err := os.Create(iso)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			copyAt(t, f, 0, one)
			copyAt(t, f, start*isotest.SectorSize, two)

			img := openImage(t, iso)
			compareSource(t, img, tree9660(t, img), first, rr)

			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			img, err = isofs.OpenSession(f, info.Size(), start)
			if err != nil {
				t.Fatal(err)
			}
			compareSource(t, img, tree9660(t, img), both, rr)

			// Media that can be overwritten get the new descriptors at sector
			// 16, as growisofs does.
			head := make([]byte, 16*isotest.SectorSize)
			if _, err := f.ReadAt(head, (start+16)*isotest.SectorSize); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(head[:4*isotest.SectorSize], 16*isotest.SectorSize); err != nil {
				t.Fatal(err)
			}
			img = openImage(t, iso)
			compareSource(t, img, tree9660(t, img), both, rr)
		})
	}

	t.Run("xorriso", func(t *testing.T) {
		iso := filepath.Join(t.TempDir(), "truth.iso")
		tool(t, "xorriso", "-report_about", "FATAL", "-dev", iso, "-map", first, "/", "-commit")
		tool(t, "xorriso", "-report_about", "FATAL", "-dev", iso, "-map", second, "/", "-commit")
		img := openImage(t, iso)
		compareSource(t, img, tree9660(t, img), both, rr)
	})
}

func copyAt(t *testing.T, w io.WriterAt, off int64, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// zisofs: names are read, and the compressed bytes never pass for the file.
func TestTruthZisofs(t *testing.T) {
	src, dir := t.TempDir(), t.TempDir()
	content := bytes.Repeat([]byte("zisofs "), 20_000)
	write(t, filepath.Join(src, wantedPath), content)
	write(t, filepath.Join(src, "small"), []byte("not compressed"))
	images := map[string]func(iso string){
		"genisoimage": func(iso string) {
			packed := filepath.Join(dir, "packed")
			tool(t, "mkzftree", src, packed)
			tool(t, "genisoimage", "-quiet", "-R", "-z", "-o", iso, packed)
		},
		"xorriso": func(iso string) {
			tool(t, "xorriso", "-report_about", "FATAL", "-outdev", iso, "-map", src, "/", "-set_filter_r", "--zisofs", "/", "--", "-commit")
		},
	}
	for name, build := range images {
		t.Run(name, func(t *testing.T) {
			iso := filepath.Join(dir, name+".iso")
			build(iso)
			img := openImage(t, iso)
			if got, err := fs.ReadFile(img, "small"); err != nil || string(got) != "not compressed" {
				t.Errorf("ReadFile(small) = %q, %v", got, err)
			}
			if _, err := img.Lookup("etcd/absent"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Lookup(absent) = %v, want fs.ErrNotExist", err)
			}
			f, err := os.Open(iso)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got, err := answer(f, fileSize(t, f), wantedPath, content); got&notMissing == 0 {
				t.Errorf("answer = %v (%v), want %v", got, err, notMissing)
			}
		})
	}
}

// A name with a newline, which a source may have, is damage here: nothing
// else on its image is lost, and no absence can be told.
func TestTruthNewline(t *testing.T) {
	src, iso := t.TempDir(), filepath.Join(t.TempDir(), "truth.iso")
	kubernetesSource(t, src)
	write(t, filepath.Join(src, "etcd/a\nb"), nil)
	tool(t, "genisoimage", "-quiet", "-R", "-o", iso, src)
	img := openImage(t, iso)
	compareFile(t, img, wantedPath, filepath.Join(src, wantedPath))
	var damage *isofs.Error
	if _, err := img.Lookup("etcd/absent"); !errors.As(err, &damage) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lookup(etcd/absent) = %v, want an *isofs.Error", err)
	}
	if _, err := img.Lookup("k8s/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lookup(k8s/absent) = %v, want fs.ErrNotExist", err)
	}
}

// A directory of 100,000 files, whose names and order bsdtar confirms.
func TestTruthManyFiles(t *testing.T) {
	const files = 100_000
	root := isotest.Dir("")
	for i := range files {
		root.Children = append(root.Children, isotest.File(fmt.Sprintf("file-%06d", i), nil))
	}
	b := isotest.Build(t, isotest.Spec{RockRidge: true, Root: root})
	iso := filepath.Join(t.TempDir(), "truth.iso")
	write(t, iso, b.Bytes())
	img := openImage(t, iso)
	compareList(t, "bsdtar", bsdtar(t, iso, isofs.RockRidge), tree9660(t, img), nil)
	for name, want := range map[string]error{"file-000000": nil, "file-050000": nil, "file-099999": nil, "file-100000": fs.ErrNotExist} {
		if _, err := img.Lookup(name); !errors.Is(err, want) {
			t.Errorf("Lookup(%q) = %v, want %v", name, err, want)
		}
	}
}

// A file over 4 GiB, in several extents at ISO level 3. Only the metadata is
// taken from xorriso, which writes it first: its program is stopped then, and
// the few bytes of data that are not zero are placed where isoinfo says.
func TestTruthOver4GiB(t *testing.T) {
	const (
		size     = math.MaxUint32 + 3*isotest.SectorSize + 7
		metadata = 1 << 20 // more than xorriso needs for two files
	)
	src := t.TempDir()
	write(t, filepath.Join(src, wantedPath), wantedData)
	big, err := os.Create(filepath.Join(src, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	if err := big.Truncate(size); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "truth.iso")
	write(t, file, head(t, metadata, "xorriso", "-as", "mkisofs", "-quiet", "-iso-level", "3", "-R", "-o", "-", src))
	sectors := isoinfoSectors(t, file)
	if got := len(sectors["big"]); got < 2 {
		t.Fatalf("isoinfo -l shows %d extents, want at least 2", got)
	}
	iso, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer iso.Close()
	start := sectors["big"][0] * isotest.SectorSize // the extents follow one another
	marks := map[int64]string{0: "first", 1<<32 - 2048 - 4: "border between extents", 1<<32 + 100: "second", size - 4: "last"}
	for off, s := range marks {
		if _, err := iso.WriteAt([]byte(s), start+off); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := iso.WriteAt(wantedData, sectors[filepath.Base(wantedPath)][0]*isotest.SectorSize); err != nil {
		t.Fatal(err)
	}
	if err := iso.Truncate(start + size + 1<<20); err != nil {
		t.Fatal(err)
	}

	img := openImage(t, file)
	f, err := img.Lookup("big")
	if err != nil {
		t.Fatal(err)
	}
	if f.Size() != size {
		t.Errorf("Size() = %d, want %d", f.Size(), int64(size))
	}
	if err := f.CheckExtents(); err != nil {
		t.Errorf("CheckExtents() = %v", err)
	}
	for off, want := range marks {
		got := make([]byte, len(want))
		if _, err := f.Reader().ReadAt(got, off); (err != nil && err != io.EOF) || string(got) != want {
			t.Errorf("ReadAt(%d) = %q, %v, want %q", off, got, err, want)
		}
	}
	if got, err := fs.ReadFile(img, wantedPath); err != nil || !bytes.Equal(got, wantedData) {
		t.Errorf("ReadFile(%s) = %d bytes, %v", wantedPath, len(got), err)
	}
	// isoinfo has a line for each extent of one file.
	list := isoinfo(t, file, isofs.RockRidge)
	slices.Sort(list)
	names := tree9660(t, img)
	compareList(t, "isoinfo", slices.Compact(list), names, nil)
	compareList(t, "bsdtar", bsdtar(t, file, isofs.RockRidge), names, nil)
}

// head returns the first n bytes that a program writes, and stops it.
func head(t *testing.T, n int64, name string, args ...string) []byte {
	t.Helper()
	needTool(t, name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	_, err = io.ReadFull(out, b)
	cancel()
	_ = cmd.Wait() // it was killed
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// isoinfoSectors asks isoinfo where the extents of each file begin.
func isoinfoSectors(t *testing.T, iso string) map[string][]int64 {
	t.Helper()
	sectors := map[string][]int64{}
	// The flags of all extents but the last print as "FFFF", without a bracket.
	line := regexp.MustCompile(`\[ *(\d+) [0-9A-F]+\]? +(\S+)`)
	for _, m := range line.FindAllStringSubmatch(tool(t, "isoinfo", "-R", "-l", "-i", iso), -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sectors[m[2]] = append(sectors[m[2]], n)
	}
	return sectors
}

// Without ER isoinfo does not believe a name; Linux and bsdtar do.
func TestTruthWithoutER(t *testing.T) {
	tr := newTree(t)
	tr.spec.NoER = true
	iso := filepath.Join(t.TempDir(), "truth.iso")
	write(t, iso, isotest.Build(t, tr.spec).Bytes())
	compareList(t, "bsdtar", bsdtar(t, iso, isofs.RockRidge), tree9660(t, openImage(t, iso)), nil)
}

// An ordinary image cut at every sector never answers "missing", whether its
// new size is known or not, or whether a device still claims the old one.
func TestTruthTruncated(t *testing.T) {
	src := t.TempDir()
	kubernetesSource(t, src)
	want, err := os.ReadFile(filepath.Join(src, wantedPath))
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"genisoimage", "-quiet", "-J", "-R", "-l"},
		{"genisoimage", "-quiet", "-J"},
		{"genisoimage", "-quiet", "-R", "-J", "-udf"},
		{"xorrisofs", "-quiet", "-J", "-R", "-l"},
		{"xorrisofs", "-quiet", "-J", "--norock"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			iso := filepath.Join(t.TempDir(), "truth.iso")
			tool(t, args[0], append(args[1:], "-o", iso, src)...)
			b, err := os.ReadFile(iso)
			if err != nil {
				t.Fatal(err)
			}
			full := int64(len(b))
			if got, err := answer(bytes.NewReader(b), full, wantedPath, want); got != found {
				t.Fatalf("whole image: answer = %v (%v), want found", got, err)
			}
			whole := 0
			for cut := int64(0); cut < full; cut += isotest.SectorSize {
				r := bytes.NewReader(b[:cut])
				for _, size := range []int64{cut, -1, full} {
					got, err := answer(r, size, wantedPath, want)
					if got&(found|unknown|notISO) == 0 {
						t.Errorf("cut at sector %d, size %d: answer = %v (%v)", cut/isotest.SectorSize, size, got, err)
					}
					if got == notISO && cut > 16*isotest.SectorSize {
						t.Errorf("cut at sector %d, size %d: %v, but the descriptor is there", cut/isotest.SectorSize, size, err)
					}
					if got == found {
						whole++
					}
				}
			}
			if whole == 0 {
				t.Error("not found in any cut image, want it in those that hold its last byte")
			}
		})
	}
}

func fileSize(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
