package inspect_test

import (
	"strings"
	"testing"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/isofs/isotest"
	"cks-etcd/internal/reason"
)

// One bit or one sector of damage leaves an image that is well formed and that
// Linux shows without the archive. It is no answer about the ISO.
func TestWellFormedDamage(t *testing.T) {
	const directory = isotest.FlagDirectory
	for _, tt := range []struct {
		name   string
		joliet bool // an image with Joliet names alone, else one with Rock Ridge
		spoil  func(etcd, file *isotest.Node)
		after  func(img *isotest.Image)
		text   string
	}{
		{name: "Joliet descriptor of zeros", joliet: true, after: func(img *isotest.Image) {
			img.WriteAt(make([]byte, isotest.SectorSize), 17*isotest.SectorSize)
		}, text: "no volume descriptor where one must be"},
		{name: "Joliet descriptor of another type", joliet: true, after: func(img *isotest.Image) {
			img.WriteAt([]byte{2 | 0x40}, 17*isotest.SectorSize)
		}, text: "unknown type 66"},
		{name: "Joliet descriptor as a boot record", joliet: true, after: func(img *isotest.Image) {
			img.WriteAt([]byte{0}, 17*isotest.SectorSize)
		}, text: "boot record"},
		{name: "Joliet descriptor with another escape sequence", joliet: true, after: func(img *isotest.Image) {
			img.WriteAt([]byte{'%' ^ 1}, 17*isotest.SectorSize+88)
		}, text: "supplementary volume descriptor of an unknown kind"},
		{name: "Joliet descriptor ends the set", joliet: true, after: func(img *isotest.Image) {
			img.WriteAt([]byte("XD001"), 18*isotest.SectorSize+1)
			img.WriteAt([]byte{0}, 17*isotest.SectorSize)
		}},
		{name: "directory recorded as a file", joliet: true, spoil: func(etcd, _ *isotest.Node) {
			etcd.Edit = func(r *isotest.Record) { r.Flags &^= directory }
		}, text: `"etcd" is recorded as a file and holds a directory`},
		{name: "archive recorded as a directory", joliet: true, spoil: func(_, file *isotest.Node) {
			file.Edit = func(r *isotest.Record) { r.Flags |= directory }
		}},
		{name: "archive recorded as a directory, Rock Ridge", spoil: func(_, file *isotest.Node) {
			file.Edit = func(r *isotest.Record) { r.Flags |= directory }
		}},
		{name: "archive recorded as a socket", spoil: func(_, file *isotest.Node) { file.Mode = 0o140644 }, text: "special file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := archiveNode(archivetest.Archive("3.5.21", "amd64"))
			etcd := isotest.Dir("etcd", file)
			root := isotest.Dir("", etcd, isotest.Dir("docker"))
			spec := isotest.Spec{RockRidge: true, Root: root}
			if tt.joliet {
				spec = isotest.Spec{Root: root, Joliet: isotest.ToJoliet(root)}
				etcd = spec.Joliet.Children[0]
				file = etcd.Children[0]
			}
			if tt.spoil != nil {
				tt.spoil(etcd, file)
			}
			img := isotest.Build(t, spec)
			if tt.after != nil {
				tt.after(img)
			}
			_, got := one(t, img, img.Size(), inspect.Request{})
			wantResult(t, got, inspect.Unknown, reason.ISODamaged, tt.text)
			if got.Err != nil && strings.Contains(got.Err.Error(), "invalid argument") {
				t.Errorf("error is %q", got.Err)
			}
		})
	}
}

// What may be well formed and unusual is still an answer.
func TestUnusualDescriptors(t *testing.T) {
	pad := func(head string) []byte {
		b := make([]byte, isotest.SectorSize)
		copy(b, head)
		return b
	}
	for name, descriptors := range map[string][][]byte{
		"none":     nil,
		"boot":     {pad("\x00CD001\x01EL TORITO SPECIFICATION")},
		"enhanced": {pad("\x02CD001\x02")},
	} {
		img := isotest.Build(t, isotest.Spec{Root: isotest.Dir("", isotest.Dir("docker")), Descriptors: descriptors})
		_, got := one(t, img, img.Size(), inspect.Request{})
		if got.Value != inspect.Missing {
			t.Errorf("%s: %s: %v", name, got.Value, got.Err)
		}
	}
}
