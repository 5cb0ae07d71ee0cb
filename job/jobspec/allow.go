package jobspec

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"rondo/corpus/location"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// Allow limits the files, folders and URLs of a job's spec that a worker may open or write, and
// whether it may inject faults. A spec comes from etcd, so anybody who can write there can name a
// file of a worker's machine: the worker's command line limits it.
type Allow struct {
	// Paths are files, and folders with all below them. Nil: the current folder with all below it,
	// except names that begin with a dot, and nothing if it is the root.
	Paths []string
	// URLs are those of buckets, and of folders in them; options must be equal. Nil: s3, gs and mem
	// without options, because an option can name another server or other credentials.
	URLs []string
	// Inject allows faults (--inject), which kill and stop processes.
	Inject bool
}

// nothing is the path or URL that allows none.
const nothing = "none"

// AddFlags defines the flags of a worker that set a.
func (a *Allow) AddFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&a.Paths, "allow-path", nil, "file or folder that the job's spec may "+
		"name; repeat it for several; none: no file; default: the current folder, without names "+
		"that begin with a dot")
	flags.StringArrayVar(&a.URLs, "allow-url", nil, "URL of a bucket or a folder in it that the "+
		"job's spec may name, with the same options; repeat it for several; none: no bucket; "+
		"default: s3://, gs:// and mem:// without options")
	flags.BoolVar(&a.Inject, "allow-inject", false, "do the faults that the job's spec orders "+
		"(inject), which may kill or stop this process")
}

// AllowFlags returns the flags that allow a worker what this spec names, and nothing else.
func AllowFlags(spec *rondov1.JobSpec) []string {
	var paths, urls []string
	for _, place := range places(spec) {
		switch file, where, err := place.parse(); {
		case err != nil: // the worker reports it
		case where != nil:
			urls = append(urls, "--allow-url="+place.location)
		case file != "":
			paths = append(paths, "--allow-path="+file)
		}
	}
	if len(paths) == 0 {
		paths = []string{"--allow-path=" + nothing}
	}
	if len(urls) == 0 {
		urls = []string{"--allow-url=" + nothing}
	}
	slices.Sort(paths)
	slices.Sort(urls)
	flags := slices.Concat(slices.Compact(paths), slices.Compact(urls))
	if spec.Inject != "" {
		flags = append(flags, "--allow-inject")
	}
	return flags
}

// Check returns an error if a spec names anything that a does not allow. It opens nothing.
func (a Allow) Check(spec *rondov1.JobSpec) error {
	for _, place := range places(spec) {
		file, where, err := place.parse()
		switch {
		case err != nil:
			return fmt.Errorf("--%s %.500q: %w", place.flag, place.location, err)
		case where != nil && !a.allowsURL(where):
			return refused(place, "--allow-url", place.location)
		case file != "":
			allowed, err := a.allowsPath(file)
			if err != nil {
				return fmt.Errorf("--%s %.500q: %w", place.flag, place.location, err)
			}
			if !allowed {
				return refused(place, "--allow-path", file)
			}
		}
	}
	if spec.Inject != "" && !a.Inject {
		return fmt.Errorf("--inject %.100q: the job's spec orders faults, which this worker does "+
			"not allow: start it with --allow-inject if you trust whoever submitted the job",
			spec.Inject)
	}
	return nil
}

func refused(p place, flag, value string) error {
	return fmt.Errorf("--%s %.500q: the job's spec names it, which this worker does not allow: "+
		"start it with %s %q if you trust whoever submitted the job", p.flag, p.location, flag,
		value)
}

// place is a location in a spec.
type place struct {
	flag, location string
	builtin        bool // names that begin with builtin: are no files
}

// places returns the locations that a spec names.
func places(spec *rondov1.JobSpec) []place {
	all := []place{{"vectors", spec.Vectors, true}, {"audit-dir", spec.AuditDir, false},
		{"tokenizer", TokenizerFile(spec), false},
		{"trace", spec.Trace, false}}
	for _, data := range []place{
		{"corpus", spec.Corpus, true}, {"eval-corpus", spec.EvalCorpus, true},
	} {
		if !task.Texts(spec.Task) {
			all = append(all, data)
			continue
		}
		for _, part := range location.All(data.location) {
			all = append(all, place{data.flag, location.Above(part), true})
		}
	}
	if KeepsModel(spec) {
		all = append(all, place{"checkpoint-dir", spec.CheckpointDir, false})
	}
	return slices.DeleteFunc(all, func(p place) bool {
		return p.location == "" || p.builtin && strings.HasPrefix(p.location, "builtin:")
	})
}

// parse returns the file that a location names, or the URL of a bucket.
func (p place) parse() (file string, bucket *url.URL, err error) {
	if !strings.Contains(p.location, "://") {
		return p.location, nil, nil
	}
	u, err := url.Parse(p.location)
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("not a URL: %w", err)
	case u.User != nil:
		return "", nil, errors.New("a URL with a user is not allowed")
	case u.Scheme != "file":
		return "", u, nil
	case u.RawQuery != "" || u.Host != "" && u.Host != "localhost":
		return "", nil, errors.New("a file URL has no host and no options: give the path")
	}
	return filepath.FromSlash(u.Path), nil, nil
}

// allowsURL reports whether a bucket's URL is an allowed one, or below it.
func (a Allow) allowsURL(u *url.URL) bool {
	if a.URLs == nil {
		return u.RawQuery == "" && slices.Contains([]string{"s3", "gs", "mem"}, u.Scheme)
	}
	return slices.ContainsFunc(a.URLs, func(text string) bool {
		allowed, err := url.Parse(text)
		if err != nil || allowed.Scheme == "" || allowed.Scheme != u.Scheme ||
			allowed.Host != u.Host || allowed.Query().Encode() != u.Query().Encode() {
			return false
		}
		above, below := path.Clean("/"+allowed.Path), path.Clean("/"+u.Path)
		return above == "/" || above == below || strings.HasPrefix(below, above+"/")
	})
}

// allowsPath reports whether a file is an allowed one, or below an allowed folder. Symbolic links
// count as what they point to.
func (a Allow) allowsPath(file string) (bool, error) {
	real, err := realPath(file)
	if err != nil {
		return false, err
	}
	if a.Paths == nil {
		here, err := realPath(".")
		if err != nil || filepath.Dir(here) == here {
			return false, err
		}
		inside, ok := within(here, real)
		return ok && !strings.Contains("/"+filepath.ToSlash(inside), "/."), nil
	}
	for _, path := range a.Paths {
		if path == nothing {
			continue
		}
		folder, err := realPath(path)
		if err != nil {
			return false, fmt.Errorf("--allow-path %s: %w", path, err)
		}
		if _, ok := within(folder, real); ok {
			return true, nil
		}
	}
	return false, nil
}

// within returns the part of a path below a folder, and whether it is there at all.
func within(folder, path string) (inside string, ok bool) {
	inside, err := filepath.Rel(folder, path)
	if err != nil || inside == ".." || strings.HasPrefix(inside, ".."+string(filepath.Separator)) {
		return "", false
	}
	if inside == "." {
		inside = ""
	}
	return inside, true
}

// realPath returns the absolute path of a file without symbolic links. Its last elements need not
// exist yet.
func realPath(file string) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(file)
	parent := filepath.Dir(file)
	if !errors.Is(err, fs.ErrNotExist) || parent == file {
		return real, err
	}
	if _, err := os.Lstat(file); err == nil {
		return "", fmt.Errorf("%s is a symbolic link to what does not exist", file)
	}
	if parent, err = realPath(parent); err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(file)), nil
}
