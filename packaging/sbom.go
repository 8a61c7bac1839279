package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// A bill is the software bill of materials of a release: each binary, and the
// modules that the linker says are in it.
type bill struct {
	rel           release
	packages      []spdxPackage
	relationships []spdxRelationship
}

// An spdxDocument is a document of SPDX 2.3, in the JSON of its schema
// (https://spdx.github.io/spdx-spec/v2.3/).
type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	ID            string             `json:"SPDXID"`
	DataLicense   string             `json:"dataLicense"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Version       string         `json:"versionInfo"`
	FileName      string         `json:"packageFileName,omitempty"`
	Supplier      string         `json:"supplier,omitempty"`
	Download      string         `json:"downloadLocation"`
	FilesAnalyzed bool           `json:"filesAnalyzed"`
	Checksums     []spdxChecksum `json:"checksums,omitempty"`
	Concluded     string         `json:"licenseConcluded"`
	Declared      string         `json:"licenseDeclared"`
	Copyright     string         `json:"copyrightText"`
	Refs          []spdxRef      `json:"externalRefs,omitempty"`
	Purpose       string         `json:"primaryPackagePurpose,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	spdxDocumentID = "SPDXRef-DOCUMENT"
	noAssertion    = "NOASSERTION"
)

// add adds binaries and their modules.
func (d *bill) add(binaries []binary) {
	for _, bin := range binaries {
		p := spdxPackage{
			ID: spdxID("binary", bin.program, bin.arch), Name: bin.program, Version: d.rel.version, FileName: bin.program,
			Supplier: "Organization: " + strings.Split(maintainer, " <")[0], Download: noAssertion,
			Checksums: []spdxChecksum{{"SHA256", bin.sha256}},
			Concluded: noAssertion, Declared: "Apache-2.0", Copyright: noAssertion,
			Refs:    []spdxRef{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:generic/%s@%s?arch=%s", bin.program, url.QueryEscape(d.rel.version), bin.arch)}},
			Purpose: "APPLICATION",
		}
		d.packages = append(d.packages, p)
		d.relationships = append(d.relationships, spdxRelationship{spdxDocumentID, "DESCRIBES", p.ID})

		modules := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(bin.info.GoVersion, "go")}}
		for _, m := range bin.info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			modules = append(modules, m)
		}
		for _, m := range modules {
			id := spdxID("module", m.Path, m.Version)
			if !slices.ContainsFunc(d.packages, func(p spdxPackage) bool { return p.ID == id }) {
				d.packages = append(d.packages, spdxPackage{
					ID: id, Name: m.Path, Version: m.Version, Download: noAssertion,
					Concluded: noAssertion, Declared: noAssertion, Copyright: noAssertion,
					Refs:    []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + url.QueryEscape(m.Version)}},
					Purpose: "LIBRARY",
				})
			}
			d.relationships = append(d.relationships, spdxRelationship{id, "STATIC_LINK", p.ID})
		}
	}
}

// write writes the document. Its namespace, which must be unique for its content,
// is made of that content.
func (d *bill) write(path string) error {
	slices.SortFunc(d.packages, func(a, b spdxPackage) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(d.relationships, func(a, b spdxRelationship) int {
		return cmp.Or(strings.Compare(a.Related, b.Related), strings.Compare(a.Element, b.Element))
	})
	doc := spdxDocument{
		Version: "SPDX-2.3", ID: spdxDocumentID, DataLicense: "CC0-1.0", Name: "cks-etcd-" + d.rel.version,
		Creation: spdxCreation{d.rel.time.Format(time.RFC3339), []string{"Tool: cks-etcd-packaging-" + d.rel.version}},
		Packages: d.packages, Relationships: d.relationships,
	}
	content, err := encode(doc)
	if err != nil {
		return err
	}
	doc.Namespace = fmt.Sprintf("https://spdx.org/spdxdocs/%s-%x", doc.Name, sha256.Sum256(content))
	if content, err = encode(doc); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

func encode(doc spdxDocument) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(doc)
	return out.Bytes(), err
}

// spdxID makes an identifier: letters, digits, dots and hyphens (SPDX 2.3, 7.2).
func spdxID(parts ...string) string {
	return "SPDXRef-" + notInID.ReplaceAllString(strings.Join(parts, "-"), "-")
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)
