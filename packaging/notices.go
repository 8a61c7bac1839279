package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// A binary is one that was built, with what the linker wrote into it.
type binary struct {
	program, arch, path string
	sha256              string
	info                *debug.BuildInfo
}

func readBinary(program, arch, path string) (binary, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return binary{}, fmt.Errorf("cannot read what %s is made of: %w", path, err)
	}
	sum, err := fileSum(path)
	return binary{program: program, arch: arch, path: path, sha256: sum, info: info}, err
}

// A notice is the text under which some modules are licensed, and which goes along
// with binaries that contain them.
type notice struct {
	modules []string // "golang.org/x/sys v0.50.0"
	text    string
}

// notices stages the licences of a program's modules and of Go's own library.
func (b *builder) notices(ctx context.Context, p program, binaries []binary) error {
	dirs, err := b.moduleDirs(ctx)
	if err != nil {
		return err
	}
	goroot, err := b.run(ctx, nil, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	var all []notice
	add := func(module, dir string) error {
		text, err := licences(dir)
		if err != nil {
			return fmt.Errorf("cannot find the licence of %s: %w", module, err)
		}
		for i := range all {
			if all[i].text == text {
				all[i].modules = append(all[i].modules, module)
				return nil
			}
		}
		all = append(all, notice{modules: []string{module}, text: text})
		return nil
	}
	if err := add("the standard library of Go, "+binaries[0].info.GoVersion, strings.TrimSpace(string(goroot))); err != nil {
		return err
	}
	for _, module := range linked(binaries) {
		if err := add(module, dirs[module]); err != nil {
			return err
		}
	}

	var plain, debian bytes.Buffer
	fmt.Fprintf(&debian, "%s is licensed under the Apache License, Version 2.0.\n\n%s\n", p.name, commonLicence)
	for _, n := range all {
		head := "\n" + strings.Repeat("-", 78) + "\nThe program contains " + strings.Join(n.modules, ",\n") + ":\n\n"
		plain.WriteString(head + n.text)
		// Debian has this one's text already, and wants it named (Debian Policy 12.5).
		debian.WriteString(head + apacheText.ReplaceAllLiteralString(n.text, "Apache License, Version 2.0.\n"+commonLicence))
	}
	if err := writeStaged(b.staged("notices", p.name), plain.Bytes()); err != nil {
		return err
	}
	return writeStaged(b.staged("copyright", p.name), debian.Bytes())
}

const commonLicence = "On Debian systems its text is in /usr/share/common-licenses/Apache-2.0."

// apacheText matches the text of the Apache License, Version 2.0, with or without
// its appendix.
var apacheText = regexp.MustCompile(`(?s)[ \t]*Apache License\s+Version 2\.0, January 2004.*?END OF TERMS AND CONDITIONS(.*limitations under the License\.)?`)

// linked returns the modules of binaries of one program, "path version", sorted.
func linked(binaries []binary) []string {
	var out []string
	for _, bin := range binaries {
		for _, m := range bin.info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			out = append(out, m.Path+" "+m.Version)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// moduleDirs returns where the source of each module is, by "path version".
func (b *builder) moduleDirs(ctx context.Context) (map[string]string, error) {
	list, err := b.run(ctx, nil, "go", "list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}", "all")
	if err != nil {
		return nil, err
	}
	dirs := make(map[string]string)
	for line := range strings.Lines(string(list)) {
		module, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		dirs[module] = dir
	}
	return dirs, nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents)([.-].*)?$`)

// licences returns the texts in the files of dir that are about rights. A module
// without one must not be linked in.
func licences(dir string) (string, error) {
	if dir == "" {
		return "", fmt.Errorf("its source is not in the module cache")
	}
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return "", err
	}
	var texts []string
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		texts = append(texts, strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))+"\n")
	}
	if len(texts) == 0 {
		return "", fmt.Errorf("no file of %s is one", dir)
	}
	return strings.Join(texts, "\n"), nil
}
