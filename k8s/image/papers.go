package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The image's papers: what is in its commands, as SPDX 2.3 in JSON, and the licences of that.
const (
	sbomFile    = "sbom.spdx.json"
	noticesFile = "THIRD-PARTY-NOTICES"
)

// part is a module of Go or a library that is linked into the commands.
type part struct {
	name, version string
	purl          string // https://github.com/package-url/purl-spec
	sum           string // of go.sum: base64 after h1:
	folder        string // where its licences are, and below
	flat          bool   // none are below
	licence       string // SPDX, if no file says it
}

// writePapers writes the papers of the commands in a folder to the same folder.
func writePapers(ctx context.Context, folder string) error {
	parts, err := partsOf(ctx, folder)
	if err != nil {
		return err
	}
	sbom, err := spdx(parts)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, sbomFile), sbom, 0o644); err != nil {
		return err
	}
	notices, err := notices(parts)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, noticesFile), notices, 0o644)
}

// partsOf reads which modules the commands in a folder were built of.
func partsOf(ctx context.Context, folder string) ([]part, error) {
	modules := map[string]bool{} // PATH@VERSION
	cgo, compiler := false, ""
	for _, command := range commands() {
		info, err := buildinfo.ReadFile(filepath.Join(folder, command))
		if err != nil {
			return nil, err
		}
		compiler = info.GoVersion
		for _, s := range info.Settings {
			cgo = cgo || s.Key == "CGO_ENABLED" && s.Value == "1"
		}
		for _, m := range info.Deps {
			if m.Replace != nil && m.Replace.Version != "" {
				m = m.Replace
			}
			modules[m.Path+"@"+m.Version] = true
		}
	}
	parts, err := download(ctx, slices.Sorted(maps.Keys(modules)))
	if err != nil {
		return nil, err
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	version := strings.TrimPrefix(compiler, "go")
	parts = append(parts, part{name: "std", version: version, purl: "pkg:golang/std@" + version,
		folder: strings.TrimSpace(string(root)), flat: true})
	if cgo {
		parts = append(parts, libc(ctx))
	}
	return parts, nil
}

// download returns the modules, which the module cache has since the build.
func download(ctx context.Context, modules []string) ([]part, error) {
	get := exec.CommandContext(ctx, "go", append([]string{"mod", "download", "-json"},
		modules...)...)
	var faults bytes.Buffer
	get.Stderr = &faults
	said, err := get.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w: %s", err, faults.Bytes())
	}
	var parts []part
	for d := json.NewDecoder(bytes.NewReader(said)); ; {
		var m struct{ Path, Version, Sum, Dir string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return parts, nil
		} else if err != nil {
			return nil, fmt.Errorf("go mod download: %w", err)
		}
		parts = append(parts, part{name: m.Path, version: m.Version, folder: m.Dir, sum: m.Sum,
			purl: "pkg:golang/" + m.Path + "@" + m.Version})
	}
}

// libc is the C library, which the C kernels bring in.
func libc(ctx context.Context) part {
	p := part{name: "glibc", licence: "LGPL-2.1-or-later", version: "unknown",
		folder: "/usr/share/doc/libc6-dev"} // on Debian
	said, err := exec.CommandContext(ctx, "getconf", "GNU_LIBC_VERSION").Output()
	if err == nil { // "glibc 2.36"
		p.version = strings.TrimSpace(strings.TrimPrefix(string(said), "glibc "))
	}
	p.purl = "pkg:generic/glibc@" + p.version
	return p
}

// spdx writes the parts as https://spdx.github.io/spdx-spec/v2.3/ has it.
func spdx(parts []part) ([]byte, error) {
	type object = map[string]any
	const none, root = "NOASSERTION", "SPDXRef-rondo"
	described := func(id string, p part) object {
		licence := none
		if p.licence != "" {
			licence = p.licence
		}
		o := object{"SPDXID": id, "name": p.name, "versionInfo": p.version,
			"downloadLocation": none, "filesAnalyzed": false, "licenseConcluded": none,
			"licenseDeclared": licence, "copyrightText": none}
		if p.purl != "" {
			o["externalRefs"] = []object{{"referenceCategory": "PACKAGE-MANAGER",
				"referenceType": "purl", "referenceLocator": p.purl}}
		}
		if p.sum != "" {
			o["comment"] = "go.sum: " + p.sum
		}
		return o
	}
	packages := []object{described(root, part{name: "rondo", licence: "Apache-2.0"})}
	relations := []object{{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
		"relatedSpdxElement": root}}
	digest := sha256.New()
	for i, p := range parts {
		id := fmt.Sprintf("SPDXRef-%d", i+1)
		packages = append(packages, described(id, p))
		relations = append(relations, object{"spdxElementId": root,
			"relationshipType": "CONTAINS", "relatedSpdxElement": id})
		fmt.Fprintln(digest, p.name, p.version, p.sum)
	}
	text, err := json.MarshalIndent(object{"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0",
		"SPDXID": "SPDXRef-DOCUMENT", "name": "rondo",
		// Unique for its content, as the specification asks.
		"documentNamespace": "https://spdx.org/spdxdocs/rondo-" + hex.EncodeToString(digest.Sum(nil)),
		"creationInfo": object{"created": "1970-01-01T00:00:00Z", // the same bytes each time
			"creators": []string{"Tool: rondo-k8s-image"}},
		"packages": packages, "relationships": relations}, "", " ")
	return append(text, '\n'), err
}

// licences matches the names of files that say what may be done with what is beside them.
var licences = regexp.MustCompile(`(?i)^((un)?licen[cs]es?|copying|copyright|notice|patents)` +
	`([-._].*)?$`)

// notices writes all licences, each text once, with the parts that have it.
func notices(parts []part) ([]byte, error) {
	names := map[string][]string{} // of parts, by text
	var order []string
	for _, p := range parts {
		texts, err := licencesIn(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if len(texts) == 0 && p.licence != "" {
			texts = []string{p.licence + ", https://spdx.org/licenses/" + p.licence + "\n"}
		}
		if len(texts) == 0 {
			return nil, fmt.Errorf("%s %s has no licence", p.name, p.version)
		}
		for _, text := range texts {
			if names[text] == nil {
				order = append(order, text)
			}
			names[text] = append(names[text], p.name+" "+p.version)
		}
	}
	var out bytes.Buffer
	for _, text := range order {
		fmt.Fprintf(&out, "%s\n%s\n\n%s\n", strings.Repeat("=", 80),
			strings.Join(names[text], "\n"), text)
	}
	return out.Bytes(), nil
}

// licencesIn returns the different texts of a part's licences.
func licencesIn(p part) (texts []string, err error) {
	if _, err := os.Stat(p.folder); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	tree := os.DirFS(p.folder)
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || p.flat && name != "."):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !licences.MatchString(entry.Name()) ||
			path.Ext(name) == ".go":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err == nil && !slices.Contains(texts, string(text)) {
			texts = append(texts, string(text))
		}
		return err
	})
	return texts, err
}
