package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An entry is a file of the image, or a folder if it has no source. All belong to root.
type entry struct {
	path   string
	mode   int64
	source string
}

// contents are the image's files; nothing else is in it.
func contents(binaries, certificates string) []entry {
	entries := []entry{
		{path: "etc/", mode: 0o755},
		{path: "etc/ssl/", mode: 0o755},
		{path: "etc/ssl/certs/", mode: 0o755},
		{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, source: certificates},
		{path: "tmp/", mode: 0o1777},
	}
	for _, command := range commands() {
		entries = append(entries, entry{path: command, mode: 0o755,
			source: filepath.Join(binaries, command)})
	}
	for _, paper := range []string{sbomFile, noticesFile} {
		entries = append(entries, entry{path: paper, mode: 0o644,
			source: filepath.Join(binaries, paper)})
	}
	return entries
}

// config is how a container of the image starts, unless its pod says otherwise.
func config(version string) v1.Config {
	return v1.Config{
		User:       "65532:65532", // numeric: runAsNonRoot can be held against it
		Entrypoint: []string{"/rondo"},
		Env:        []string{"PATH=/", "XDG_CACHE_HOME=/tmp"},
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "rondo",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
}

// pack writes the image's archive to output, and returns a line about it.
func pack(tag, version string, entries []entry, output string) (string, error) {
	reference, err := name.NewTag(tag)
	if err != nil {
		return "", fmt.Errorf("--tag %s: %w", tag, err)
	}
	layerFile, err := os.CreateTemp("", "rondo-layer-*.tar")
	if err != nil {
		return "", err
	}
	defer os.Remove(layerFile.Name())
	err = writeTar(layerFile, entries)
	if closed := layerFile.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", fmt.Errorf("the image's layer: %w", err)
	}
	image, err := imageOf(layerFile.Name(), version)
	if err != nil {
		return "", err
	}
	if err := writeArchive(image, reference, output); err != nil {
		return "", fmt.Errorf("--output %s: %w", output, err)
	}
	return summary(image, tag, output)
}

// writeTar writes the entries, with nothing in it that changes from one time to the next.
func writeTar(to io.Writer, entries []entry) error {
	out := tar.NewWriter(to)
	for _, e := range entries {
		if e.source == "" {
			header := &tar.Header{Typeflag: tar.TypeDir, Name: e.path, Mode: e.mode,
				ModTime: time.Unix(0, 0)}
			if err := out.WriteHeader(header); err != nil {
				return err
			}
			continue
		}
		if err := addFile(out, e); err != nil {
			return err
		}
	}
	return out.Close()
}

func addFile(out *tar.Writer, e entry) error {
	file, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: e.path, Mode: e.mode, Size: info.Size(),
		ModTime: time.Unix(0, 0)}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(out, file)
	return err
}

// imageOf makes an image of one layer.
func imageOf(layerFile, version string) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(layerFile, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("the image's layer: %w", err)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON)
	if image, err = mutate.ConfigFile(image, &v1.ConfigFile{Architecture: runtime.GOARCH,
		OS: "linux", Config: config(version), Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		RootFS: v1.RootFS{Type: "layers"}}); err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: time.Unix(0, 0).UTC()}, CreatedBy: "k8s/image"}})
}

// A blob is a part of the archive.
type blob struct {
	name string
	size int64
	open func() (io.ReadCloser, error)
}

func inMemory(name string, content []byte) blob {
	return blob{name: name, size: int64(len(content)), open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// writeArchive writes an OCI layout that is also what `docker save` writes: which of the two a
// program reads, it finds the image's name.
func writeArchive(image v1.Image, reference name.Tag, output string) error {
	blobs, err := blobsOf(image, reference)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(output), filepath.Base(output)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // unless it has its name
	err = writeBlobs(file, blobs)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(file.Name(), 0o644); err != nil {
		return err
	}
	return os.Rename(file.Name(), output)
}

func writeBlobs(to io.Writer, blobs []blob) error {
	out := tar.NewWriter(to)
	for _, b := range blobs {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: b.name, Mode: 0o644, Size: b.size,
			ModTime: time.Unix(0, 0)}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		content, err := b.open()
		if err != nil {
			return err
		}
		_, err = io.Copy(out, content)
		content.Close()
		if err != nil {
			return err
		}
	}
	return out.Close()
}

// familiar is the name as people write it, and full as containerd stores it.
func familiar(tag name.Tag) string {
	return strings.TrimPrefix(strings.TrimPrefix(full(tag), "docker.io/"), "library/")
}

func full(tag name.Tag) string {
	full := strings.Replace(tag.Name(), name.DefaultRegistry+"/", "docker.io/", 1)
	if local, ok := strings.CutPrefix(full, "docker.io/localhost/"); ok {
		return "localhost/" + local // a registry to all but the library
	}
	return full
}

// blobsOf lists the archive's blobs.
func blobsOf(image v1.Image, tag name.Tag) ([]blob, error) {
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image,
		Descriptor: v1.Descriptor{
			Annotations: map[string]string{
				"io.containerd.image.name":          full(tag),
				"org.opencontainers.image.ref.name": tag.TagStr(),
			},
			Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
		}})
	indexText, err := index.RawManifest()
	if err != nil {
		return nil, err
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	configText, err := image.RawConfigFile()
	if err != nil {
		return nil, err
	}
	configDigest, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	blobs := []blob{
		inMemory("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)),
		inMemory("index.json", indexText),
		inMemory(blobName(digest), manifest),
		inMemory(blobName(configDigest), configText),
	}
	saved := tarball.Descriptor{Config: blobName(configDigest), RepoTags: []string{familiar(tag)}}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return nil, err
		}
		size, err := layer.Size()
		if err != nil {
			return nil, err
		}
		saved.Layers = append(saved.Layers, blobName(digest))
		blobs = append(blobs, blob{name: blobName(digest), size: size, open: layer.Compressed})
	}
	savedText, err := json.Marshal([]tarball.Descriptor{saved})
	return append(blobs, inMemory("manifest.json", savedText)), err
}

// summary describes the image.
func summary(image v1.Image, tag, output string) (string, error) {
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	info, err := os.Stat(output)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s, linux/%s, %.1f MiB, %s", output, tag, runtime.GOARCH,
		float64(info.Size())/(1<<20), digest), nil
}
