package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// pack builds one package as PROGRAM.yaml describes it.
func (b *builder) pack(p program, arch, format string) error {
	config, err := b.config(p, arch)
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	if info.Scripts, err = scripts(filepath.Join(b.root, "packaging", "scripts", format, p.name)); err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info.Target = filepath.Join(b.out, packager.ConventionalFileName(info))
	f, err := os.Create(info.Target)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := packager.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}

// config reads PROGRAM.yaml. In it ${stage} is the stage, ${root} the source tree,
// and ${arch} the architecture.
func (b *builder) config(p program, arch string) (*nfpm.Config, error) {
	values := map[string]string{"stage": b.stage, "root": b.root, "arch": arch}
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join(b.root, "packaging", p.name+".yaml"), func(name string) string { return values[name] })
	if err != nil {
		return nil, err
	}
	config.Name = p.name
	config.Arch = arch
	config.Platform = "linux"
	// Ours is complete; nfpm has read parts of another one from its default.
	config.Version, config.VersionSchema, config.Prerelease = b.rel.version, "none", ""
	config.Release = packageRelease
	config.MTime = b.rel.time
	config.Maintainer = maintainer
	config.Changelog = b.staged(p.name + ".changelog.yaml")
	config.RPM.BuildHost = "reproducible" // rpm wants one; it must not be this machine's
	normalise(config.Contents, b.rel.time)
	return &config, nil
}

// scripts finds the scripts of one package, under Debian's names for both formats.
func scripts(base string) (nfpm.Scripts, error) {
	var s nfpm.Scripts
	for suffix, field := range map[string]*string{
		".preinst": &s.PreInstall, ".postinst": &s.PostInstall, ".prerm": &s.PreRemove, ".postrm": &s.PostRemove,
	} {
		_, err := os.Stat(base + suffix)
		switch {
		case err == nil:
			*field = base + suffix
		case !errors.Is(err, fs.ErrNotExist):
			return s, err
		}
	}
	return s, nil
}

// normalise gives files the time of the release and the mode that their place asks
// for, whatever the umask of the checkout was.
func normalise(contents files.Contents, mtime time.Time) {
	for _, c := range contents {
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{}
		}
		c.FileInfo.MTime = mtime
		switch {
		case c.FileInfo.Mode != 0 || c.Type == files.TypeSymlink:
		case c.Type == files.TypeDir || strings.HasPrefix(path.Dir(c.Destination), "/usr/bin"):
			c.FileInfo.Mode = 0o755
		default:
			c.FileInfo.Mode = 0o644
		}
	}
}
