package checkpoint

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

func TestLocations(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	for _, test := range []struct{ location, want string }{
		{"", "no checkpoint folder"},
		{"s3://bucket/run", "local folders only"},
		{"file://host/run", "file:///path"},
		{"file:///run?metadata=skip", "no parameters"},
		{"s3://%zz/", "is not a URL"},
	} {
		_, err := Open(ctx, test.location, Config{})
		wantError(t, err, test.want)
	}
	_, err := Open(ctx, dir, Config{Job: "x"})
	wantError(t, err, `job "x" and identity ""`)
	for location, want := range map[string]string{
		"file://" + dir:                  dir,
		"file://" + dir + "?prefix=a/b/": dir + "/a/b",
		dir + "/":                        dir,
	} {
		store, err := Open(ctx, location, Config{})
		check(t, err)
		if got := store.place.at(""); got != want {
			t.Errorf("%s is %s, want %s", location, got, want)
		}
	}
	relative, err := Open(ctx, "runs/a", Config{})
	check(t, err)
	if got := relative.place.at("step-1"); got != "runs/a/step-1" {
		t.Errorf("a relative path is %s", got)
	}
	if _, err := os.Stat("runs"); err == nil {
		t.Error("Open made a folder")
	}
}

func TestCommas(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 7: "7", 999: "999", 1000: "1,000", 12345: "12,345", -100: "-100", -1000: "-1,000",
		123456789: "123,456,789",
	} {
		if got := commas(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

// Manifests of format 1 are read, as programs without claim, run and digest wrote them.
func TestFirstFormatIsRead(t *testing.T) {
	const old = `{"format": 1, "job": "opticks", "identity": "sha256:11", "step": 50, "epoch": 5,
		"created": "2023-11-14T22:13:20Z", "files": null, "metrics": {"loss": 1},
		"manifest_sha256": "2b1c"}`
	m := Manifest{Format: 1, Job: "opticks", Identity: "sha256:11", Step: 50, Epoch: 5,
		Created: time.Unix(1_700_000_000, 0).UTC(), Metrics: Metrics{"loss": 1}}
	sum, err := m.checksum()
	check(t, err)
	got, err := parseManifest([]byte(strings.Replace(old, "2b1c", sum, 1)))
	check(t, err)
	if got.Format != 1 || got.Step != 50 || got.Digest != 0 {
		t.Errorf("%+v", got)
	}
}

func TestMetricsThatAreNotFinite(t *testing.T) {
	b, err := json.Marshal(Metrics{"a": math.NaN(), "b": math.Inf(-1), "c": 1.5, "d": math.Inf(1)})
	if want := `{"a":"NaN","b":"-Inf","c":1.5,"d":"+Inf"}`; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	var m Metrics
	check(t, json.Unmarshal(b, &m))
	if !math.IsNaN(m["a"]) || !math.IsInf(m["b"], -1) || m["c"] != 1.5 || !math.IsInf(m["d"], 1) {
		t.Errorf("read back %v", m)
	}
	for _, bad := range []string{`{"a":"1"}`, `{"a":"x"}`, `{"a":null}`, `{"a":true}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &m); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
}

// FuzzManifest parses arbitrary manifests. An accepted one must not reach outside its folder.
func FuzzManifest(f *testing.F) {
	m := Manifest{Format: 1, Job: "a", Identity: "b", Created: time.Unix(1, 0).UTC(),
		Metrics: Metrics{"x": 1}, Files: []FileEntry{{Name: "m.safetensors", Size: 8,
			SHA256: strings.Repeat("0", 64), Path: "attempt-0123456789abcdef/m.safetensors"}}}
	b, err := m.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest(b)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if strings.Contains(file.path(), "..") || strings.Count(file.path(), "/") > 1 {
				t.Errorf("accepted the path %q", file.path())
			}
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseManifest(again); err != nil {
			t.Errorf("refused after writing it again: %v", err)
		}
	})
}
