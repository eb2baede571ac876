package main

import (
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// library is a shared library, or the loader, of a program.
type library struct {
	path string // as the loader looks for it
	pkg  string // its Debian package
}

// libraryFolders are the folders in which the loader of Debian searches.
func libraryFolders() ([]string, error) {
	folders, err := filepath.Glob("/lib/*-linux-gnu")
	return append(folders, "/lib", "/usr/lib"), err
}

// librariesOf returns the loader of a program and the libraries that it needs, also those
// of libraries.
func librariesOf(program string) ([]library, error) {
	folders, err := libraryFolders()
	if err != nil {
		return nil, err
	}
	found := map[string]library{}
	var add func(file string) error
	add = func(file string) error {
		needed, loader, err := needs(file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if loader != "" {
			needed = append([]string{loader}, needed...) // at its path, before a library names it
		}
		for _, name := range needed {
			if _, done := found[filepath.Base(name)]; done {
				continue
			}
			path := name
			for _, folder := range folders {
				if filepath.IsAbs(path) {
					break
				}
				if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
					path = filepath.Join(folder, name)
				}
			}
			if !filepath.IsAbs(path) {
				return fmt.Errorf("%s needs %s, which %s lack", file, name, strings.Join(folders, " and "))
			}
			pkg, err := packageOf(path)
			if err != nil {
				return err
			}
			found[filepath.Base(name)] = library{path, pkg}
			if err := add(path); err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(program); err != nil {
		return nil, err
	}
	var out []library
	for _, l := range found {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b library) int { return cmp.Compare(a.path, b.path) })
	return out, nil
}

// needs returns the libraries and the loader that an ELF file names.
func needs(file string) (libraries []string, loader string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	libraries, err = f.ImportedLibraries()
	if err != nil {
		return nil, "", err
	}
	if s := f.Section(".interp"); s != nil {
		text, err := s.Data()
		if err != nil {
			return nil, "", err
		}
		loader = strings.TrimRight(string(text), "\x00")
	}
	return libraries, loader, nil
}

// packageOf returns the Debian package of a file.
func packageOf(path string) (string, error) {
	for _, at := range []string{path, strings.TrimPrefix(path, "/usr"), resolved(path)} {
		out, err := exec.Command("dpkg-query", "--search", at).Output()
		if err == nil {
			pkg, _, _ := strings.Cut(string(out), ": ")
			return pkg, nil
		}
	}
	return "", fmt.Errorf("%s is of no Debian package: build the image on Debian or Ubuntu, as its licence must be known", path)
}

func resolved(path string) string {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return target
}
