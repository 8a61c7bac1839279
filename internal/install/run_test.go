//go:build linux

package install

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

func TestRun(t *testing.T) {
	t.Setenv("ETCD_NAME", "leak")
	t.Setenv("LD_PRELOAD", "")
	tests := []struct {
		name    string
		program []byte
		args    []string
		want    string // all of the output, or a part of the message
		code    reason.Code
	}{
		{"prints", []byte("#!/bin/sh\necho etcd Version: 3.5.0 \"$@\"; echo warning >&2\n"), []string{"--version"}, "etcd Version: 3.5.0 --version\n", ""},
		{"clean environment", []byte("#!/bin/sh\nenv | grep -c -e ^LD_ -e ^ETCD_NAME\ntrue\n"), nil, "0\n", ""},
		{"silent", []byte("#!/bin/sh\n"), nil, "", ""},
		{"exit status", []byte("#!/bin/sh\necho out; echo; echo 'panic: \"x\"' >&2; echo more >&2; exit 3\n"), nil, `etcd ended with exit status 3: panic: "x"`, reason.BinCannotRun},
		{"exit status, only output", []byte("#!/bin/sh\necho; echo unsupported; exit 1\n"), nil, "etcd ended with exit status 1: unsupported", reason.BinCannotRun},
		{"exit status, silent", []byte("#!/bin/sh\nexit 1\n"), nil, "etcd ended with exit status 1", reason.BinCannotRun},
		{"killed", []byte("#!/bin/sh\nkill -9 $$\n"), nil, "was killed by SIGKILL", reason.BinCannotRun},
		{"illegal instruction", elfFile(t, elf.EM_NONE, "", trap), nil, "was killed by SIGILL: it uses an instruction", reason.BinCannotRun},
		{"missing loader", elfFile(t, elf.EM_NONE, "/lib/ld-nowhere.so.9", trap), []string{"--version"}, "etcd --version needs the dynamic loader /lib/ld-nowhere.so.9, which is missing", reason.BinCannotRun},
		{"missing interpreter", []byte("#!/nowhere/sh\n"), nil, "interpreter of etcd is missing", reason.BinCannotRun},
		{"foreign machine", elfFile(t, 0xfffe, "", trap), nil, "not a program for this machine (" + runtime.GOARCH + ")", reason.BinCannotRun},
		{"not a program", []byte{0, 1, 2, 3}, nil, "not a program for this machine", reason.BinCannotRun},
		{"empty", nil, nil, "not a program for this machine", reason.BinCannotRun},
		// An interpreter that may not be executed is what a security module's veto looks like.
		{"forbidden", []byte("#!/etc/passwd\n"), nil, "a security module", reason.BinNoExec},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := begin(t, t.TempDir())
			mustPut(t, s, "etcd", tt.program)
			got, err := s.Run(context.Background(), "etcd", tt.args...)
			if tt.code == "" {
				if err != nil || got != tt.want {
					t.Fatalf("got %q, %v, want %q", got, err, tt.want)
				}
				return
			}
			wantCode(t, err, tt.code)
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), stagePrefix) {
				t.Errorf("got %q, want %q in it and no path of the stage", err, tt.want)
			}
		})
	}
}

func TestRunBoundsOutput(t *testing.T) {
	s := begin(t, t.TempDir())
	mustPut(t, s, "etcd", []byte("#!/bin/sh\nhead -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2\n"))
	got, err := s.Run(context.Background(), "etcd")
	if err != nil || len(got) != outputLimit {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, outputLimit)
	}
}

// TestRunEndsTheWholeGroup: the program, and what it started, are dead when
// Run returns, whatever made it end.
func TestRunEndsTheWholeGroup(t *testing.T) {
	tests := []struct {
		name    string
		tail    string // what the program does after it started a child
		timeout time.Duration
		cancel  bool
		check   func(error) bool
	}{
		{"cancelled", "wait", time.Hour, true, func(err error) bool {
			var coded *reason.Error
			return errors.Is(err, context.Canceled) && !errors.As(err, &coded)
		}},
		{"own deadline", "echo hanging >&2; wait", 300 * time.Millisecond, false, func(err error) bool {
			return reason.Of(err) == reason.BinCannotRun && strings.Contains(err.Error(), "did not end in time: hanging")
		}},
		{"left a child", "exit 0", time.Hour, false, func(err error) bool { return err == nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fifo := filepath.Join(dir, "fifo")
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			s := begin(t, filepath.Join(dir, "bin"))
			s.timeout = tt.timeout
			// The child holds the fifo open as long as it lives.
			mustPut(t, s, "etcd", []byte("#!/bin/sh\nexec 3>"+fifo+"\necho here >&3\nsleep 3600 >/dev/null 2>&1 &\n"+tt.tail+"\n"))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			result := make(chan error, 1)
			go func() {
				_, err := s.Run(ctx, "etcd")
				result <- err
			}()
			f, err := os.Open(fifo)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := io.ReadFull(f, make([]byte, len("here\n"))); err != nil {
				t.Fatal(err)
			}
			if tt.cancel {
				cancel()
			}
			if err := <-result; !tt.check(err) {
				t.Errorf("got %v", err)
			}
			f.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.Copy(io.Discard, f); err != nil {
				t.Errorf("got %v, want the end of file: a child is still alive", err)
			}
		})
	}
}

func TestRunAlreadyCancelled(t *testing.T) {
	s := begin(t, t.TempDir())
	mustPut(t, s, "etcd", []byte("#!/bin/sh\n"))
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("told to stop")
	cancel(stop)
	if _, err := s.Run(ctx, "etcd"); !errors.Is(err, stop) {
		t.Errorf("got %v, want the cause", err)
	}
}

// trap is machine code that no CPU executes.
var trap = map[string][]byte{
	"amd64": {0x0f, 0x0b}, // UD2
	"arm64": {0, 0, 0, 0}, // UDF #0
}[runtime.GOARCH]

// elfFile makes a static program of the code, or one that wants the dynamic
// loader interp. machine EM_NONE stands for the one of this machine.
func elfFile(t *testing.T, machine elf.Machine, interp string, code []byte) []byte {
	t.Helper()
	if machine == elf.EM_NONE {
		machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	}
	if machine == elf.EM_NONE || code == nil {
		t.Fatalf("the test does not know the machine code of %s", runtime.GOARCH)
	}
	const base, headers = 0x400000, 64 + 2*56
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64,
	}
	size := uint64(headers + len(code) + len(interp) + 1)
	progs := []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000}, {}}
	if interp != "" {
		h.Phnum = 2
		progs[1] = elf.Prog64{Type: uint32(elf.PT_INTERP), Flags: uint32(elf.PF_R), Off: uint64(headers + len(code)), Filesz: uint64(len(interp) + 1), Memsz: uint64(len(interp) + 1), Align: 1}
	}
	var b bytes.Buffer
	for _, v := range []any{h, progs, code, append([]byte(interp), 0)} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}
