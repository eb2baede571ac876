package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// clone returns a folder with the parts of the image: the Envoy of make envoy, and a small
// program in place of meshctl.
func clone(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	above, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(root, "bin/meshctl"), "./testdata/meshctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.MkdirAll(filepath.Join(root, ".cache/envoy"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"LICENSE", ".cache/envoy/envoy"} {
		if _, err := os.Stat(filepath.Join(above, name)); err != nil {
			t.Fatalf("%v: make envoy", err)
		}
		if err := os.Symlink(filepath.Join(above, name), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// extract writes the files of an image to a folder and returns their paths.
func extract(t *testing.T, img v1.Image, dir string) (paths []string) {
	t.Helper()
	content := mutate.Extract(img)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return paths
		}
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, h.Name)
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, os.FileMode(h.Mode)); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestImage: two builds have one digest. The image has no shell and no root, Envoy finds its
// libraries in it, and the SBOM names all parts, whose licences are in the image.
func TestImage(t *testing.T) {
	root := clone(t)
	o := options{root: root, meshctl: "bin/meshctl", out: "image.tar", name: "localhost/meshctl:v1"}
	first, err := run(o)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(filepath.Join(root, o.out))
	if err != nil {
		t.Fatal(err)
	}
	second, err := run(o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(filepath.Join(root, o.out))
	if err != nil || first != second || string(archive) != string(again) {
		t.Errorf("%s, then %s, %v: the bytes differ: %v", first, second, err, string(archive) != string(again))
	}
	img, err := build(root, filepath.Join(root, "bin/meshctl"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil || config.Config.User != "1337:1337" || config.OS != "linux" {
		t.Errorf("%+v %v", config, err)
	}
	rootfs := t.TempDir()
	paths := extract(t, img, rootfs)
	for _, path := range paths {
		if base := filepath.Base(path); base == "sh" || base == "bash" || base == "busybox" {
			t.Errorf("the image has %s", path)
		}
	}
	text, err := os.ReadFile(filepath.Join(rootfs, documents, "sbom.spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo, Comment string }
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range document.Packages {
		names = append(names, p.Name)
		licence := strings.TrimPrefix(p.Comment, "licence: /")
		if p.VersionInfo == "" || !slices.Contains(paths, licence) {
			t.Errorf("%+v: its licence is not in the image", p)
		}
	}
	for _, want := range []string{"meshctl", "envoy", "go", "libc6", "ca-certificates"} {
		if !slices.Contains(names, want) {
			t.Errorf("the SBOM names %q, without %s", names, want)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to run Envoy in the image")
	}
	envoy := exec.CommandContext(t.Context(), "/usr/local/bin/envoy", "--version")
	envoy.Dir = "/"
	envoy.SysProcAttr = &syscall.SysProcAttr{Chroot: rootfs, Credential: &syscall.Credential{Uid: user, Gid: user}}
	if err := os.Chmod(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := envoy.CombinedOutput(); err != nil || !strings.Contains(string(out), "version: ") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestLicencesArePermitted: each module in meshctl has a licence that permits to pass it on.
func TestLicencesArePermitted(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "-C", "../..", "list", "-tags", "grpcnotrace", "-deps",
		"-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/meshctl")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	permitted := []string{
		"Apache License Version 2.0", "Permission is hereby granted, free of charge", "Redistribution and use in source and binary forms",
		"Mozilla Public License Version 2.0", "Permission to use, copy, modify, and/or distribute this software for any purpose",
		"Permission to use, copy, modify, and distribute this software for any purpose",
	}
	modules := slices.Compact(slices.Sorted(strings.Lines(string(out))))
	if len(modules) < 20 {
		t.Fatalf("only %d modules", len(modules))
	}
	for _, line := range modules {
		name, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		texts, err := licences(folder, "go/"+name)
		if err != nil {
			t.Error(err)
			continue
		}
		known := false
		for _, e := range texts {
			text, err := os.ReadFile(e.file)
			if err != nil {
				t.Fatal(err)
			}
			known = known || slices.ContainsFunc(permitted, func(p string) bool { return strings.Contains(words(string(text)), words(p)) })
		}
		if !known {
			t.Errorf("%s: none of its licences is known: %v", name, texts)
		}
	}
}

// words returns the words of a text, without their case and the line breaks.
func words(text string) string {
	return strings.ToLower(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || r == ',' }), " "))
}
