package bucket

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeysInAFile: one file has the keys and the region of s3:// URLs, as pods mount it.
func TestKeysInAFile(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "credentials")
	err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = tester\n"+
		"aws_secret_access_key = a-secret\nregion = eu-north-7\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range os.Environ() {
		if name, _, _ = strings.Cut(name, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
			_ = os.Unsetenv(name)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", keys)
	shown := make(chan string, 16)
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusNotFound)
	}))
	defer store.Close()
	b, err := Open(t.Context(), "s3://models?use_path_style=true&endpoint="+store.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	if there, err := b.Exists(t.Context(), "x"); there || err != nil {
		t.Fatalf("%t, %v", there, err)
	}
	got := <-shown
	if !strings.HasPrefix(got, "AWS4-HMAC-SHA256 Credential=tester/") ||
		!strings.Contains(got, "/eu-north-7/s3/aws4_request") {
		t.Errorf("it shows %q", got)
	}
}
