// Package location reads the names of texts: several of them, and patterns. It opens nothing, and
// imports nothing of this module.
package location

import (
	"net/url"
	"strings"
)

// All returns the parts of a name: paths, URLs and patterns, which are separated by commas.
func All(name string) []string { return strings.Split(name, ",") }

// Above returns the folder of all that a pattern matches. Another location is returned as it is.
func Above(location string) string {
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
