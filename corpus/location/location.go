// Package location reads the names of texts: several of them, and patterns. It opens nothing, and
// imports nothing of this module.
package location

import (
	"net/url"
	"slices"
	"strings"
	"unicode"
)

// All returns the parts of a name: paths, URLs and patterns, which are separated by commas.
func All(name string) []string { return strings.Split(name, ",") }

// Split cuts the name of a split off a location: #train, #valid or #test at its end.
func Split(location string) (rest, split string) {
	at := strings.LastIndexByte(location, '#')
	if at < 0 || !slices.Contains([]string{"train", "valid", "test"}, location[at+1:]) {
		return location, ""
	}
	return location[:at], location[at+1:]
}

// InSplit reports whether a file is of a split. The last of the words train, valid and test in its
// name, or in those of its folders, says so. Some know them as training, validation, val and dev.
func InSplit(name, split string) bool {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !unicode.IsLetter(r)
	})
	for _, word := range slices.Backward(words) {
		switch word {
		case "train", "training":
			return split == "train"
		case "valid", "validation", "val", "dev":
			return split == "valid"
		case "test":
			return split == "test"
		}
	}
	return false
}

// Above returns the folder of all that a pattern matches. Another location is returned as it is,
// but for a split's name.
func Above(location string) string {
	location, _ = Split(location)
	if !strings.Contains(location, "://") {
		return above(location, "*?[")
	}
	u, err := url.Parse(location)
	if err != nil {
		return location
	}
	folder := Folder(u)
	if folder == u.Path {
		return location
	}
	u.Path, u.RawPath = folder, ""
	return u.String()
}

// Folder returns the part of a URL's path before the first element with a wildcard, * or [. In a
// URL ? begins the options.
func Folder(u *url.URL) string { return above(u.Path, "*[") }

// above returns the part of a name before the first element with one of the wildcards.
func above(name, wildcards string) string {
	start := strings.IndexAny(name, wildcards)
	if start < 0 {
		return name
	}
	if last := strings.LastIndex(name[:start], "/"); last >= 0 {
		return name[:last+1]
	}
	return "."
}
