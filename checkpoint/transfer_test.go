package checkpoint

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What Send writes, Receive makes the same checkpoint of. A stream that was cut or altered leaves
// nothing behind.
func TestTransfer(t *testing.T) {
	store, _ := localStore(t, t.TempDir())
	_, err := store.Save(t.Context(), snapshot(7, 1))
	check(t, err)
	found, err := store.Latest(t.Context())
	check(t, err)
	var sent bytes.Buffer
	check(t, found.Send(t.Context(), &sent))

	dir := filepath.Join(t.TempDir(), "new")
	manifest, at, err := Receive(t.Context(), bytes.NewReader(sent.Bytes()), dir)
	check(t, err)
	if at != filepath.Join(dir, "step-00000007") || manifest.SHA256 != found.SHA256 {
		t.Errorf("received %+v at %s", manifest, at)
	}
	again, received, err := Resolve(t.Context(), dir, Config{})
	check(t, err)
	check(t, received.Verify(t.Context()))
	check(t, again.Close())
	start := bytes.NewReader(sent.Bytes()[:1024]) // it is refused before its files travel
	if _, _, err := Receive(t.Context(), start, dir); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second time: %v", err)
	}

	altered := bytes.Clone(sent.Bytes())
	altered[bytes.Index(altered, []byte(`{"`))+600] ^= 1 // within the tensors
	for what, stream := range map[string]io.Reader{
		"nothing": strings.NewReader(""),
		"cut":     bytes.NewReader(sent.Bytes()[:sent.Len()/2]),
		"altered": bytes.NewReader(altered),
		"no tar":  strings.NewReader(strings.Repeat("no tar ", 200)),
	} {
		refuses(t, what, stream)
	}
}

// refuses fails unless Receive refuses a stream and leaves nothing.
func refuses(t *testing.T, what string, stream io.Reader) {
	t.Helper()
	dir := t.TempDir()
	if _, _, err := Receive(t.Context(), stream, dir); err == nil {
		t.Errorf("%s was received", what)
	}
	left, err := os.ReadDir(dir)
	if check(t, err); len(left) > 0 {
		t.Errorf("%s left %s", what, left[0].Name())
	}
}

// A stream cannot write elsewhere, nor any number of files.
func TestReceiveForeignFiles(t *testing.T) {
	stream := func(headers ...tar.Header) io.Reader {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range headers {
			h.Mode = 0o644
			check(t, w.WriteHeader(&h))
		}
		check(t, w.Close())
		return &out
	}
	many := make([]tar.Header, maxFiles+2)
	for i := range many {
		many[i].Name = "step-00000001/" + strings.Repeat("a", i+1) + ".safetensors"
	}
	for what, s := range map[string]io.Reader{
		"another name":  stream(tar.Header{Name: "step-00000001/../../passwd"}),
		"a rooted name": stream(tar.Header{Name: "/step-00000001/model.safetensors"}),
		"two steps": stream(tar.Header{Name: "step-00000001/model.safetensors"},
			tar.Header{Name: "step-00000002/model.safetensors"}),
		"a link": stream(tar.Header{Name: "step-00000001/model.safetensors",
			Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}),
		"a file twice": stream(tar.Header{Name: "step-00000001/model.safetensors"},
			tar.Header{Name: "step-00000001/model.safetensors"}),
		"many files": stream(many...),
	} {
		refuses(t, what, s)
	}
}
