package jobspec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	rondov1 "rondo/proto/rondo/v1"
)

// allowedBy parses a worker's flags.
func allowedBy(t *testing.T, flags ...string) Allow {
	t.Helper()
	var a Allow
	set := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	a.AddFlags(set)
	if err := set.Parse(flags); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAllow: without flags a worker opens what is visible below its folder, and buckets without
// options.
func TestAllow(t *testing.T) {
	home := t.TempDir()
	here := filepath.Join(home, "here")
	for _, folder := range []string{".aws", "data/.keys", "here/runs"} {
		if err := os.MkdirAll(filepath.Join(home, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(home, ".aws", "credentials")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": home, "dangling": filepath.Join(home, "new")} {
		if err := os.Symlink(to, filepath.Join(here, link)); err != nil {
			t.Fatal(err)
		}
	}
	minio := "?endpoint=http://minio:9000&use_path_style=true"
	for _, c := range []struct {
		location, in, flags string
		refused             string // empty: it is allowed
	}{
		{"book.txt", "", "", ""},
		{"runs/deep/new", "", "", ""},
		{here, "", "", ""},
		{"file://" + here + "/book.txt", "", "", ""},
		{"s3://texts/book.txt", "", "", ""},
		{"gs://texts/book.txt", "", "", ""},
		{secret, "", "", `--allow-path "` + secret},
		{"file://" + secret, "", "", `--allow-path "` + secret},
		{"file://localhost" + secret, "", "", `--allow-path "` + secret},
		{"FILE://" + secret, "", "", `--allow-path "` + secret},
		{"../.aws/credentials", "", "", "--allow-path"},
		{"link/.aws/credentials", "", "", "--allow-path"},
		{"link/data/a.txt", "", "", "--allow-path"},
		{"dangling", "", "", "symbolic link"},
		{".aws/credentials", home, "", "--allow-path"},
		{"data/.keys/a", home, "", "--allow-path"},
		{"data/a", home, "", ""},
		{here + "-else/a", "", "", "--allow-path"},
		{"/etc/passwd", "/", "", "--allow-path"},
		{"s3://texts/book.txt?endpoint=http://evil", "", "", "--allow-url"},
		{"s3://texts/book.txt?profile=admin", "", "", "--allow-url"},
		{"http://evil/book.txt", "", "", "--allow-url"},
		{"s3://key@texts/a", "", "", "user"},
		{"file:///a?prefix=../" + secret, "", "", "no options"},
		{secret, "", "--allow-path=" + home + "/.aws", ""},
		{secret, "", "--allow-path=" + home + "/.aw", "--allow-path"},
		{"book.txt", "", "--allow-path=" + home + "/.aws", "--allow-path"},
		{"book.txt", "", "--allow-path=none", "--allow-path"},
		{"/etc/passwd", "", "--allow-path=/", ""},
		{"s3://texts/a", "", "--allow-url=none", "--allow-url"},
		{"s3://texts/a", "", "--allow-url=s3://texts", ""},
		{"s3://text/a", "", "--allow-url=s3://texts", "--allow-url"},
		{"s3://texts/a/b", "", "--allow-url=s3://texts/a", ""},
		{"s3://texts/ab", "", "--allow-url=s3://texts/a", "--allow-url"},
		{"s3://texts/a/../b", "", "--allow-url=s3://texts/a", "--allow-url"},
		{"s3://texts/a" + minio, "", "--allow-url=s3://texts", "--allow-url"},
		{"s3://texts/a" + minio, "", "--allow-url=s3://texts" + minio, ""},
	} {
		folder := c.in
		if folder == "" {
			folder = here
		}
		t.Chdir(folder)
		var flags []string
		if c.flags != "" {
			flags = []string{c.flags}
		}
		a := allowedBy(t, flags...)
		for name, spec := range map[string]*rondov1.JobSpec{
			"corpus":         {Corpus: c.location},
			"eval-corpus":    {EvalCorpus: c.location},
			"vectors":        {Vectors: c.location},
			"checkpoint-dir": {CheckpointDir: c.location},
			"audit-dir":      {AuditDir: c.location},
			"trace":          {Trace: c.location},
		} {
			err := a.Check(spec)
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("%s %v: --%s: %v", folder, flags, name, err)
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused) ||
				!strings.Contains(err.Error(), "--"+name)):
				t.Errorf("%s %v: --%s %s: %v, want %q", folder, flags, name, c.location, err,
					c.refused)
			}
		}
	}
}

// TestAllowFlags: a worker that has the flags of a spec accepts it, and no other file, bucket or
// fault.
func TestAllowFlags(t *testing.T) {
	t.Chdir(t.TempDir())
	spec := &rondov1.JobSpec{Corpus: "/texts/book, vol. 1.txt", EvalCorpus: "s3://texts/eval.txt",
		CheckpointDir: "s3://models/a?endpoint=http://minio:9000", AuditDir: "/logs",
		Inject: "kill rank=1 step=3"}
	own := allowedBy(t, AllowFlags(spec)...)
	if err := own.Check(spec); err != nil {
		t.Error(err)
	}
	for _, other := range []*rondov1.JobSpec{{Corpus: "book.txt"}, {Corpus: "/texts/book"},
		{Corpus: "s3://texts/other.txt"}, {Trace: "/log"}} {
		if err := own.Check(other); err == nil {
			t.Errorf("%v is allowed", other)
		}
	}
	plain := allowedBy(t, AllowFlags(&rondov1.JobSpec{Corpus: "builtin:opticks"})...)
	for _, other := range []*rondov1.JobSpec{{Corpus: "book.txt"}, {Corpus: "s3://texts/a"},
		{Inject: "kill rank=1 step=3"}} {
		if err := plain.Check(other); err == nil {
			t.Errorf("%v is allowed beside a job of no files", other)
		}
	}
}

// TestAllowTexts checks each part of a corpus of several texts, by the folder of a pattern.
func TestAllowTexts(t *testing.T) {
	t.Chdir(t.TempDir())
	for corpus, want := range map[string]bool{
		"a.txt,texts,new/*.gz":               true,
		"texts/*.txt,/etc/passwd":            false,
		"/etc/*":                             false,
		"texts/../../*":                      false,
		"*/../../x":                          true, // opened files must lie below .
		"s3://bucket/a/,s3://bucket/b/*.txt": true,
		"s3://bucket/a/,s3://b/*.txt?endpoint=http:": false,
	} {
		spec := Default()
		spec.Corpus = corpus
		if err := (Allow{}).Check(spec); (err == nil) != want {
			t.Errorf("%s: %v", corpus, err)
		}
		var a Allow
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		a.AddFlags(flags)
		if err := flags.Parse(AllowFlags(spec)); err != nil {
			t.Error(err)
		} else if err := a.Check(spec); err != nil {
			t.Errorf("%s by its own flags: %v", corpus, err)
		}
	}
}
