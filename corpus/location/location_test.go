package location

import (
	"slices"
	"testing"
)

func TestAbove(t *testing.T) {
	for name, want := range map[string]string{
		"book.txt":                     "book.txt",
		"*.txt":                        ".",
		"a/b/*.txt":                    "a/b/",
		"a/b*/c/d?.txt":                "a/",
		"/*/x":                         "/",
		"s3://bucket/a/*.txt":          "s3://bucket/a/",
		"s3://bucket/a/b.txt":          "s3://bucket/a/b.txt",
		"s3://bucket/a/*.gz?region=r":  "s3://bucket/a/?region=r",
		"s3://bucket/a.txt?endpoint=*": "s3://bucket/a.txt?endpoint=*",
		"file:///a/[xy]/z":             "file:///a/",
	} {
		if got := Above(name); got != want {
			t.Errorf("Above(%q) = %q; want %q", name, got, want)
		}
	}
	if got := All("a,b/*,s3://c/"); !slices.Equal(got, []string{"a", "b/*", "s3://c/"}) {
		t.Error(got)
	}
}
