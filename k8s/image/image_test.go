package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// packed is an image of small files under a name, and its archive.
func packed(t *testing.T, tag string) (file string) {
	t.Helper()
	folder := t.TempDir()
	for _, command := range append(commands(), "certificates", sbomFile, noticesFile) {
		text := []byte(strings.Repeat(command, 1000))
		if err := os.WriteFile(filepath.Join(folder, command), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(folder, "made", "image.tar")
	files := contents(folder, filepath.Join(folder, "certificates"))
	line, err := pack(tag, "1.2.3", files, file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(line, file+": "+tag+", linux/") {
		t.Errorf("it says %q", line)
	}
	return file
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// inside are the files of an archive by name.
func inside(t *testing.T, archive io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	for in := tar.NewReader(archive); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
		headers[header.Name] = header
	}
}

func TestSameBytes(t *testing.T) {
	if !bytes.Equal(read(t, packed(t, "rondo:1")), read(t, packed(t, "rondo:1"))) {
		t.Error("the same inputs give other bytes")
	}
}

// What `docker load` and kind read is the same image as what containerd and podman read, and both
// know its name.
func TestNames(t *testing.T) {
	for tag, want := range map[string]struct{ full, familiar string }{
		"rondo:1":                 {"docker.io/library/rondo:1", "rondo:1"},
		"me/rondo:1":              {"docker.io/me/rondo:1", "me/rondo:1"},
		"localhost/rondo:test":    {"localhost/rondo:test", "localhost/rondo:test"},
		"example.org:5000/a/b":    {"example.org:5000/a/b:latest", "example.org:5000/a/b:latest"},
		"docker.io/library/rondo": {"docker.io/library/rondo:latest", "rondo:latest"},
	} {
		file := packed(t, tag)
		files, _ := inside(t, bytes.NewReader(read(t, file)))
		var index v1.IndexManifest
		if err := json.Unmarshal(files["index.json"], &index); err != nil {
			t.Fatal(err)
		}
		if len(index.Manifests) != 1 {
			t.Fatalf("%d images", len(index.Manifests))
		}
		listed := index.Manifests[0]
		if got := listed.Annotations["io.containerd.image.name"]; got != want.full {
			t.Errorf("%s: containerd calls it %s; want %s", tag, got, want.full)
		}
		reference, err := name.NewTag(want.familiar)
		if err != nil {
			t.Fatal(err)
		}
		saved, err := tarball.ImageFromPath(file, &reference)
		if err != nil {
			t.Fatalf("%s: %v", tag, err)
		}
		var manifest v1.Manifest
		if err := json.Unmarshal(files[blobName(listed.Digest)], &manifest); err != nil {
			t.Fatalf("%s: the index names a manifest that is not there: %v", tag, err)
		}
		config, err := saved.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		if config != manifest.Config.Digest {
			t.Errorf("%s: two images: %v, %v", tag, config, manifest.Config.Digest)
		}
		for _, layer := range manifest.Layers {
			if int64(len(files[blobName(layer.Digest)])) != layer.Size {
				t.Errorf("%s: layer %v is not there", tag, layer.Digest)
			}
		}
	}
}

// The image has these files and no other, nobody but root may write them, and it starts so.
func TestContents(t *testing.T) {
	image, err := tarball.ImageFromPath(packed(t, "rondo:1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	files, headers := inside(t, mutate.Extract(image))
	var got []string
	for _, h := range headers {
		got = append(got, fmt.Sprintf("%s %o %d:%d", h.Name, h.Mode, h.Uid, h.Gid))
	}
	slices.Sort(got)
	want := []string{"THIRD-PARTY-NOTICES 644 0:0", "coordinator 755 0:0", "etc 755 0:0",
		"etc/ssl 755 0:0", "etc/ssl/certs 755 0:0", "etc/ssl/certs/ca-certificates.crt 644 0:0",
		"rondo 755 0:0", "sbom.spdx.json 644 0:0", "tmp 1777 0:0", "worker 755 0:0"}
	if !slices.Equal(got, want) {
		t.Errorf("files\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !bytes.HasPrefix(files["worker"], []byte("workerworker")) {
		t.Errorf("worker has %.20q", files["worker"])
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("it is of %s/%s", config.OS, config.Architecture)
	}
}

// instructions are a Dockerfile's lines, those that go on joined, from the last FROM or all.
func instructions(t *testing.T, file string) (all, last []string) {
	t.Helper()
	text := strings.ReplaceAll(string(read(t, file)), "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.Join(strings.Fields(line), " ")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "FROM ") {
			last = nil
		}
		all, last = append(all, line), append(last, line)
	}
	return all, last
}

// copied are the files that COPY lines make.
func copied(lines []string) []string {
	var made []string
	for _, line := range lines {
		if words := strings.Fields(line); words[0] == "COPY" {
			made = append(made, strings.TrimPrefix(words[len(words)-1], "/"))
		}
	}
	slices.Sort(made)
	return made
}

// The Dockerfile makes the image that this command makes.
func TestDockerfile(t *testing.T) {
	all, last := instructions(t, "../Dockerfile")
	arguments := buildArguments("/out", true)
	for i, argument := range arguments {
		if strings.Contains(argument, " ") {
			arguments[i] = `"` + argument + `"`
		}
	}
	build := "go " + strings.Join(arguments, " ")
	if !strings.Contains(strings.Join(all, "\n"), build) {
		t.Errorf("the Dockerfile does not build with\n%s", build)
	}
	var want []string
	for _, e := range contents("", "certificates") {
		if e.source != "" || e.path == "tmp/" {
			want = append(want, strings.TrimSuffix(e.path, "/"))
		}
	}
	slices.Sort(want)
	if got := copied(last); !slices.Equal(got, want) {
		t.Errorf("the Dockerfile copies %q; want %q", got, want)
	}
	starts(t, last, "FROM scratch")
}

// The image for GPUs has the same commands, and starts in the same way.
func TestDockerfileCUDA(t *testing.T) {
	all, last := instructions(t, "../Dockerfile.cuda")
	made := copied(last)
	for _, command := range commands() {
		if !slices.Contains(made, command) {
			t.Errorf("it lacks %s: %q", command, made)
		}
	}
	if !slices.ContainsFunc(all, func(line string) bool {
		return strings.Contains(line, "-tags cuda,"+tags)
	}) {
		t.Error("it is not built with the tag cuda")
	}
	starts(t, last, "FROM gcr.io/distroless/cc-debian12:nonroot@sha256:"+
		"9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f")
}

// Dockerfile.cuda changes the two modules as scripts/cuda.sh does.
func TestDockerfileChangesModules(t *testing.T) {
	var texts [2]string
	for i, file := range []string{"../../scripts/cuda.sh", "../Dockerfile.cuda"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	_, changes, _ := strings.Cut(texts[0], "\nchange_gorgonia() {")
	changes, _, _ = strings.Cut(changes, "\nno_modules() {")
	changes = regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(changes, "")
	expressions := regexp.MustCompile(`'[^']+'|const \w+`).FindAllString(changes, -1)
	if len(expressions) != 4 {
		t.Errorf("scripts/cuda.sh has %q", expressions)
	}
	for _, e := range expressions {
		if !strings.Contains(texts[1], e) {
			t.Errorf("Dockerfile.cuda lacks %s", e)
		}
	}
}

// Base images are named by their digests: a tag may be another image tomorrow.
func TestBaseImages(t *testing.T) {
	for _, file := range []string{"../Dockerfile", "../Dockerfile.cuda"} {
		all, _ := instructions(t, file)
		for _, line := range all {
			if image, is := strings.CutPrefix(line, "FROM "); is && image != "scratch" &&
				!regexp.MustCompile(`^\S+:\S+@sha256:[0-9a-f]{64}( AS \w+)?$`).MatchString(image) {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}

// The images leave out of other modules the same as the Makefile's builds.
func TestTags(t *testing.T) {
	makefile := string(read(t, "../../Makefile"))
	_, line, _ := strings.Cut(makefile, "\nexport TAGS := ")
	want, _, _ := strings.Cut(line, "\n")
	if want == "" || !strings.HasSuffix(tags, ","+want) {
		t.Errorf("the Makefile's TAGS are %q, the image's %q", want, tags)
	}
}

// Docker's build is sent the folders that the commands are built from, and nothing else.
func TestDockerignore(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-tags", "cuda", "-f", "{{.ImportPath}}",
		"./cmd/rondo", "./cmd/worker", "./cmd/coordinator")
	list.Dir = "../.."
	output, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v", list, err)
	}
	want := []string{"!go.mod", "!go.sum"}
	for line := range strings.Lines(string(output)) {
		if inside, ours := strings.CutPrefix(strings.TrimSpace(line), "rondo/"); ours {
			folder, _, _ := strings.Cut(inside, "/")
			want = append(want, "!"+folder)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	lines, _ := instructions(t, "../../.dockerignore")
	if len(lines) == 0 || lines[0] != "*" {
		t.Errorf("it does not begin with all that there is: %q", lines)
	}
	var sent []string
	for _, line := range lines {
		if strings.HasPrefix(line, "!") {
			sent = append(sent, line)
		}
	}
	slices.Sort(sent)
	if !slices.Equal(sent, want) {
		t.Errorf("it lets through %q\nwant %q", sent, want)
	}
	for _, secret := range []string{"**/.*", "**/*.env", "**/*.key", "**/*.pem"} {
		if !slices.Contains(lines, secret) {
			t.Errorf("it does not keep %s out", secret)
		}
	}
}

// starts checks how a Dockerfile's image starts.
func starts(t *testing.T, last []string, from string) {
	t.Helper()
	c := config("")
	entrypoint, err := json.Marshal(c.Entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{from, "USER " + c.User, "ENTRYPOINT " + string(entrypoint),
		"ENV " + strings.Join(c.Env, " ")} {
		if !slices.Contains(last, line) {
			t.Errorf("the Dockerfile's image has no %q", line)
		}
	}
}

func TestErrors(t *testing.T) {
	folder := t.TempDir()
	_, tag := pack("Not A Tag", "1", nil, folder+"/x")
	_, file := pack("a/b:1", "1", []entry{{path: "b", source: folder + "/none"}}, folder+"/x")
	for name, err := range map[string]error{
		"--tag Not A Tag": tag, "no such file": file,
		"unexpected argument": run(t.Context(), []string{"word"}),
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v; want one of %s", err, name)
		}
	}
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// isStatic fails if a program asks for an interpreter, as those do that need libraries.
func isStatic(t *testing.T, file string) {
	t.Helper()
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s is not static", file)
		}
	}
}

// The C kernels, with threads of their own, compute the same in a program that is linked
// statically.
func TestStaticKernels(t *testing.T) {
	output, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "linux" || strings.TrimSpace(string(output)) != "1" {
		t.Skip("there are no C kernels in this build")
	}
	program := filepath.Join(t.TempDir(), "kernels")
	build := exec.Command("go", "test", "-c", "-tags", tags, "-ldflags", ldflags+static,
		"-o", program, "../../compute/cpu")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, said)
	}
	isStatic(t, program)
	tests := exec.Command(program, "-test.v",
		"-test.run", "^(TestThreadsAgree|TestGemmParts|TestFunctions|TestHeadThreads)$")
	tests.Dir = "../../compute/cpu"
	said, err := tests.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if n := bytes.Count(said, []byte("\n--- PASS: Test")); n != 4 {
		t.Errorf("%d of 4 tests ran\n%s", n, said)
	}
}

// The real image: RONDO_TEST_LONG=1, because it compiles every dependency anew.
func TestCommands(t *testing.T) {
	if os.Getenv("RONDO_TEST_LONG") == "" {
		t.Skip("set RONDO_TEST_LONG=1 to build the image's binaries")
	}
	t.Chdir("../..")
	folder := t.TempDir()
	if err := run(context.Background(), []string{"-binaries", folder, "-output",
		filepath.Join(folder, "image.tar")}); err != nil {
		t.Fatal(err)
	}
	for _, command := range commands() {
		isStatic(t, filepath.Join(folder, command))
	}
	image, err := tarball.ImageFromPath(filepath.Join(folder, "image.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := inside(t, mutate.Extract(image))
	var bill struct {
		Packages []struct{ Name, VersionInfo string }
	}
	if err := json.Unmarshal(files[sbomFile], &bill); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"google.golang.org/grpc", "std", "glibc"} {
		if !slices.ContainsFunc(bill.Packages, func(p struct{ Name, VersionInfo string }) bool {
			return p.Name == name && p.VersionInfo != ""
		}) {
			t.Errorf("%s lacks %s", sbomFile, name)
		}
	}
	if n := len(bill.Packages); n < 50 {
		t.Errorf("%d packages", n)
	}
	for _, command := range commands() {
		if !bytes.Equal(files[command], read(t, filepath.Join(folder, command))) {
			t.Errorf("%s in the image is another", command)
		}
	}
}

// TestPapers: the papers list the modules of a program and have their licences, each text once, the
// same bytes each time; a part without a licence is an error.
func TestPapers(t *testing.T) {
	program, err := os.Executable() // built of modules, as the commands are
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for _, command := range commands() {
		if err := os.Symlink(program, filepath.Join(folder, command)); err != nil {
			t.Fatal(err)
		}
	}
	papers := func() (sbom, notices []byte) {
		if err := writePapers(t.Context(), folder); err != nil {
			t.Fatal(err)
		}
		return read(t, filepath.Join(folder, sbomFile)), read(t, filepath.Join(folder, noticesFile))
	}
	sbom, notices := papers()
	if again, same := papers(); !bytes.Equal(sbom, again) || !bytes.Equal(notices, same) {
		t.Error("not the same bytes again")
	}
	var bill struct {
		SPDXVersion string
		Packages    []struct {
			SPDXID, Name, VersionInfo string
			ExternalRefs              []struct{ ReferenceLocator string }
		}
		Relationships []struct{ RelatedSPDXElement string }
	}
	if err := json.Unmarshal(sbom, &bill); err != nil {
		t.Fatal(err)
	}
	const module = "github.com/google/go-containerregistry"
	found := false
	ids := map[string]bool{}
	for i, p := range bill.Packages {
		ids[p.SPDXID] = true
		if bill.Relationships[i].RelatedSPDXElement != p.SPDXID {
			t.Errorf("%s is not in the image", p.Name)
		}
		found = found || p.Name == module && p.ExternalRefs[0].ReferenceLocator ==
			"pkg:golang/"+module+"@"+p.VersionInfo
	}
	if !found || len(ids) != len(bill.Packages) || bill.SPDXVersion != "SPDX-2.3" {
		t.Errorf("%d packages, %d names, %s", len(bill.Packages), len(ids), bill.SPDXVersion)
	}
	for _, words := range []string{module + " v", "\nstd 1.", "Apache License"} {
		if !bytes.Contains(notices, []byte(words)) {
			t.Errorf("%s lacks %q", noticesFile, words)
		}
	}
	texts := map[string]bool{}
	for section := range strings.SplitSeq(string(notices), strings.Repeat("=", 80)+"\n") {
		_, text, _ := strings.Cut(section, "\n\n")
		if text != "" && texts[text] {
			t.Errorf("a text is there twice: %.60q", text)
		}
		texts[text] = true
	}
	_, err = notes(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "has no licence") {
		t.Errorf("a part without a licence: %v", err)
	}
}

func notes(folder string) ([]byte, error) {
	return notices([]part{{name: "x", version: "1", folder: folder}})
}
