package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// part is a component of the image.
type part struct {
	Name, Version string
	URL           string // package URL
	License       string // SPDX id, empty if only its text is known
	SHA256        string // of the component's file, if it is one
	texts         []entry
}

// documents is the folder of the SBOM and the licences.
const documents = "usr/share/doc/meshctl/"

// partsOf returns the components of the image, meshctl first.
func partsOf(root, meshctl, envoy string, libraries []library) ([]part, error) {
	info, err := buildinfo.ReadFile(meshctl)
	if err != nil {
		return nil, fmt.Errorf("%w; build it with: make build", err)
	}
	version, err := versionOf(meshctl, "version")
	if err != nil {
		return nil, err
	}
	sum, err := sumOf(meshctl)
	if err != nil {
		return nil, err
	}
	out := []part{{
		Name: "meshctl", Version: version, URL: "pkg:golang/" + info.Main.Path, License: "Apache-2.0", SHA256: sum,
		texts: []entry{{path: documents + "LICENSE", file: filepath.Join(root, "LICENSE")}},
	}}
	cache, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	folders := strings.Fields(string(cache))
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		texts, err := licences(filepath.Join(folders[0], escaped(dep.Path)+"@"+escaped(dep.Version)), "go/"+dep.Path)
		if err != nil {
			return nil, err
		}
		out = append(out, part{Name: dep.Path, Version: dep.Version, URL: "pkg:golang/" + dep.Path + "@" + dep.Version, texts: texts})
	}
	texts, err := licences(folders[1], "go/std")
	if err != nil {
		return nil, err
	}
	out = append(out, part{Name: "go", Version: info.GoVersion, URL: "pkg:generic/go@" + info.GoVersion, License: "BSD-3-Clause", texts: texts})
	return withEnvoy(out, root, envoy, libraries)
}

// withEnvoy adds Envoy and the Debian packages of its libraries.
func withEnvoy(out []part, root, envoy string, libraries []library) ([]part, error) {
	version, err := versionOf(envoy, "--version")
	if err != nil {
		return nil, err
	}
	sum, err := sumOf(envoy)
	if err != nil {
		return nil, err
	}
	out = append(out, part{
		Name: "envoy", Version: version, URL: "pkg:github/envoyproxy/envoy@v" + version, License: "Apache-2.0", SHA256: sum,
		texts: []entry{{path: documents + "licenses/envoy/LICENSE", file: filepath.Join(root, "LICENSE")}}, // the same text
	})
	var packages []string
	for _, l := range libraries {
		packages = append(packages, l.pkg)
	}
	packages = append(packages, "ca-certificates")
	slices.Sort(packages)
	for _, pkg := range slices.Compact(packages) {
		version, err := exec.Command("dpkg-query", "--show", "--showformat", "${Version}", pkg).Output()
		if err != nil {
			return nil, fmt.Errorf("version of the package %s: %w", pkg, err)
		}
		name, _, _ := strings.Cut(pkg, ":")
		out = append(out, part{
			Name: name, Version: string(version), URL: "pkg:deb/debian/" + name + "@" + string(version),
			texts: []entry{{path: documents + "licenses/debian/" + name + "/copyright", file: "/usr/share/doc/" + name + "/copyright"}},
		})
	}
	return out, nil
}

// versionOf returns the version that a program prints.
func versionOf(program, flag string) (string, error) {
	text, err := exec.Command(program, flag).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, flag, err)
	}
	if m := regexp.MustCompile(`/(\d+\.\d+\.\d+)[^/]*/`).FindSubmatch(text); m != nil {
		return string(m[1]), nil // Envoy's
	}
	first, _, _ := bytes.Cut(text, []byte(" ("))
	return string(bytes.TrimSpace(first)), nil
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// escaped returns a path or version of a module as the module cache spells it.
func escaped(s string) string {
	return regexp.MustCompile(`[A-Z]`).ReplaceAllStringFunc(s, func(c string) string { return "!" + strings.ToLower(c) })
}

// licences returns the files with the licences of a folder. A folder without one is an
// error.
func licences(folder, to string) ([]entry, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var out []entry
	name := regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents)`)
	for _, f := range files {
		if f.Type().IsRegular() && name.MatchString(f.Name()) {
			out = append(out, entry{path: documents + "licenses/" + to + "/" + f.Name(), file: filepath.Join(folder, f.Name())})
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	// A module in a folder of a repository may have the licence of the whole one.
	above := filepath.Dir(folder)
	if _, err := os.Stat(filepath.Join(above, "LICENSE")); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no licence", folder)
	}
	return []entry{{path: documents + "licenses/" + to + "/LICENSE", file: filepath.Join(above, "LICENSE")}}, nil
}

// documentsOf returns the SBOM and the licences of the components.
func documentsOf(parts []part) ([]entry, error) {
	text, err := sbom(parts)
	if err != nil {
		return nil, err
	}
	out := []entry{{path: documents + "sbom.spdx.json", text: text}}
	for _, p := range parts {
		out = append(out, p.texts...)
	}
	return out, nil
}

// sbom returns the components as an SPDX 2.3 document. Its name space is the hash of its
// content, so that equal images have equal documents.
func sbom(parts []part) ([]byte, error) {
	const none = "NOASSERTION"
	var packages, relations []any
	for i, p := range parts {
		id := fmt.Sprintf("SPDXRef-%d", i)
		pkg := map[string]any{
			"SPDXID": id, "name": p.Name, "versionInfo": p.Version, "downloadLocation": none, "filesAnalyzed": false,
			"licenseConcluded": none, "licenseDeclared": cmp.Or(p.License, none), "copyrightText": none,
			"externalRefs": []any{map[string]any{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": p.URL}},
		}
		if p.SHA256 != "" {
			pkg["checksums"] = []any{map[string]any{"algorithm": "SHA256", "checksumValue": p.SHA256}}
		}
		if len(p.texts) > 0 {
			pkg["comment"] = "licence: /" + path.Clean(p.texts[0].path)
		}
		packages = append(packages, pkg)
		relations = append(relations, map[string]any{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": id})
	}
	document := map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "meshctl image",
		"creationInfo": map[string]any{"created": "1970-01-01T00:00:00Z", "creators": []any{"Tool: meshctl-tools-image"}},
		"packages":     packages, "relationships": relations,
	}
	text, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	document["documentNamespace"] = fmt.Sprintf("https://github.com/meshctl/meshctl/sbom/%x", sha256.Sum256(text))
	return json.MarshalIndent(document, "", "  ")
}
