//go:build linux

package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cks-etcd/internal/reason"
)

// crashDirEnv makes the test binary the process that TestKilled kills.
const crashDirEnv = "INSTALL_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDirEnv); dir != "" {
		if err := installForever(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// program returns a shell script that prints its name and generation, followed
// by bytes that depend on the generation and by a digest of everything, so that
// any mixture of two generations is found out.
func program(name string, generation uint64, size int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "#!/bin/sh\necho %s %d\nexit 0\n", name, generation)
	b.Write(binary.BigEndian.AppendUint64([]byte("\nGENERATION"), generation))
	r := rand.NewChaCha8(sha256.Sum256(b.Bytes()))
	payload := make([]byte, size)
	r.Read(payload)
	b.Write(payload)
	sum := sha256.Sum256(b.Bytes())
	b.Write(sum[:])
	return b.Bytes()
}

// generation checks that b is one whole program and returns its generation.
func generation(b []byte) (uint64, error) {
	body := len(b) - sha256.Size
	if body < 0 || sha256.Sum256(b[:body]) != [sha256.Size]byte(b[body:]) {
		return 0, fmt.Errorf("not whole: %d bytes", len(b))
	}
	_, tail, ok := bytes.Cut(b, []byte("\nGENERATION"))
	if !ok {
		return 0, errors.New("no generation in it")
	}
	return binary.BigEndian.Uint64(tail), nil
}

// put stages data under name in one go.
func put(s *Stage, name string, data []byte) error {
	f, err := s.Create(name, int64(len(data)))
	if err != nil {
		return err
	}
	defer f.Close()
	for chunk := range slices.Chunk(data, 32<<10) {
		if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	return f.Close()
}

// begin is Begin for tests: the stage ends with the test.
func begin(t *testing.T, dir string) *Stage {
	t.Helper()
	s, err := Begin(dir)
	if err != nil {
		t.Fatalf("Begin(%s): %v", dir, err)
	}
	t.Cleanup(func() {
		if err := s.Discard(); err != nil {
			t.Errorf("Discard: %v", err)
		}
	})
	return s
}

func mustPut(t *testing.T, s *Stage, name string, data []byte) {
	t.Helper()
	if err := put(s, name, data); err != nil {
		t.Fatalf("staging %s: %v", name, err)
	}
}

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want code %s", want)
	}
	if got := reason.Of(err); got != want {
		t.Fatalf("got code %s (%v), want %s", got, err, want)
	}
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o755 {
		t.Errorf("%s: got mode %v, want a regular file with 0755", path, info.Mode())
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got %d bytes that differ from the %d staged", path, len(got), len(want))
	}
}

// stages lists what looks like a stage in dir.
func stages(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, stagePrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func mustNotExist(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want that it does not exist", path, err)
	}
}
