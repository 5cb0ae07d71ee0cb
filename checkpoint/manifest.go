package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	manifestName = "manifest.json"
	// FormatVersion is the manifest format that this package writes, and the newest that it reads.
	// It grows with each new field, since a program takes a manifest with a field that it does not
	// know for a damaged one, and passes it over. Version 2 has claim, run and digest.
	FormatVersion = 2
	// maxManifestBytes bounds the memory for a manifest. Most of a manifest is the vocabulary.
	maxManifestBytes = 256 << 20
	// maxFiles is the largest number of files in one checkpoint.
	maxFiles = 64
)

// Manifest describes one checkpoint. A folder without it is no checkpoint.
type Manifest struct {
	Format int `json:"format"`
	// Job is the run's name. Identity is a fingerprint that tells runs of one name apart.
	Job      string    `json:"job"`
	Identity string    `json:"identity"`
	Step     int64     `json:"step"`
	Epoch    int64     `json:"epoch"`
	Created  time.Time `json:"created"`
	// Claim is the number of the writer's claim on the folder (see Owner); 0: it made none.
	Claim int64 `json:"claim,omitempty"`
	// Run is the writer's Owner.Run; 0: it is not known.
	Run int64 `json:"run,omitempty"`
	// Digest identifies the state in the run's other records, such as its audit logs. This package
	// does not read it. 0: it is not known.
	Digest uint64      `json:"digest,omitempty"`
	Files  []FileEntry `json:"files"`
	// Spec is the job's specification; Training holds the scalars of its schedules and counters.
	// This package does not read them.
	Spec       json.RawMessage `json:"spec,omitempty"`
	Training   json.RawMessage `json:"training,omitempty"`
	Metrics    Metrics         `json:"metrics,omitempty"`
	Vocabulary []string        `json:"vocabulary,omitempty"`
	// Tokenizer splits text into the vocabulary's subwords. This package does not read it.
	Tokenizer json.RawMessage `json:"tokenizer,omitempty"`
	// Outputs are what the network predicts, if that is not the tokens that it reads.
	Outputs []string `json:"outputs,omitempty"`
	// SHA256 is the hash of the manifest's compact JSON with this field empty.
	SHA256 string `json:"manifest_sha256"`
}

// FileEntry is one file of a checkpoint.
type FileEntry struct {
	Name string `json:"name"`
	// Path is the file's path within the step's folder if it differs from Name. Buckets use it:
	// each save has its own sub-folder.
	Path   string `json:"path,omitempty"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

func (f FileEntry) path() string {
	if f.Path != "" {
		return f.Path
	}
	return f.Name
}

// File returns the entry with the given name.
func (m *Manifest) File(name string) (FileEntry, bool) {
	for _, f := range m.Files {
		if f.Name == name {
			return f, true
		}
	}
	return FileEntry{}, false
}

// Metrics are named figures of a step. In JSON a value that is not finite is a string ("NaN",
// "+Inf", "-Inf"), so that a diverged run can be saved.
type Metrics map[string]float64

// MarshalJSON writes the metrics in sorted order.
func (m Metrics) MarshalJSON() ([]byte, error) {
	values := make(map[string]any, len(m))
	for name, v := range m {
		values[name] = v
		if math.IsNaN(v) || math.IsInf(v, 0) {
			values[name] = strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	return json.Marshal(values)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (m *Metrics) UnmarshalJSON(b []byte) error {
	var values map[string]any
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	*m = make(Metrics, len(values))
	for name, value := range values {
		switch v := value.(type) {
		case float64:
			(*m)[name] = v
		case string:
			f, err := strconv.ParseFloat(v, 64)
			if err != nil || !(math.IsNaN(f) || math.IsInf(f, 0)) {
				return fmt.Errorf("metric %q is %q, not a number", name, v)
			}
			(*m)[name] = f
		default:
			return fmt.Errorf("metric %q is %v, not a number", name, value)
		}
	}
	return nil
}

// checksum returns the SHA-256 of the manifest's compact JSON with the SHA256 field empty.
func (m Manifest) checksum() (string, error) {
	m.SHA256 = ""
	b, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// encode sets the checksum and returns the bytes of the manifest file.
func (m *Manifest) encode() ([]byte, error) {
	sum, err := m.checksum()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", manifestName, err)
	}
	m.SHA256 = sum
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("encode %s: %w", manifestName, err)
	}
	if b.Len() > maxManifestBytes {
		return nil, fmt.Errorf("%s takes %s bytes, more than the limit of %s: is the vocabulary "+
			"too large?", manifestName, commas(int64(b.Len())), commas(maxManifestBytes))
	}
	return b.Bytes(), nil
}

// newerFormatError says that the manifest has a later format. That is not damage, but this program
// cannot read it.
type newerFormatError struct{ format int }

func (e *newerFormatError) Error() string {
	return fmt.Sprintf("has format version %d, and this program reads up to version %d: "+
		"use a newer program", e.format, FormatVersion)
}

// parseManifest reads and checks a manifest.
func parseManifest(b []byte) (*Manifest, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return nil, fmt.Errorf("is not valid JSON: %w", err)
	}
	if version.Format > FormatVersion {
		return nil, &newerFormatError{version.Format}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	m := new(Manifest)
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("is not a manifest: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("goes on after its JSON object")
	}
	var err error
	for _, raw := range []*json.RawMessage{&m.Spec, &m.Training, &m.Tokenizer} {
		if *raw, err = compact(*raw); err != nil {
			return nil, err
		}
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	sum, err := m.checksum()
	if err != nil {
		return nil, err
	}
	if sum != m.SHA256 {
		return nil, fmt.Errorf("was altered: its SHA-256 is %s, and it says %s", sum, m.SHA256)
	}
	return m, nil
}

// compact removes the white space from JSON. It returns nil for empty input.
func compact(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// check checks the manifest's fields. Names and paths follow patterns without "..", so no manifest
// can reach outside its folder.
func (m *Manifest) check() error {
	switch {
	case m.Format < 1:
		return fmt.Errorf("has format version %d, and the first is 1", m.Format)
	case m.Job == "" || m.Identity == "":
		return errors.New("has no job or no identity")
	case m.Step < 0 || m.Epoch < 0:
		return fmt.Errorf("has step %d and epoch %d", m.Step, m.Epoch)
	case m.Claim < 0 || m.Claim > maxClaim:
		return fmt.Errorf("has claim %d", m.Claim)
	case m.Created.IsZero():
		return errors.New("has no time of creation")
	case len(m.Files) > maxFiles:
		return fmt.Errorf("lists %d files, more than the limit of %d", len(m.Files), maxFiles)
	}
	seen := make(map[string]bool)
	for _, f := range m.Files {
		switch {
		case !isFileName(f.Name) || seen[f.Name]:
			return fmt.Errorf("lists a file %q, which is not a name or comes twice", f.Name)
		case f.Path != "" && !isAttemptPath(f.Path):
			return fmt.Errorf("has %s at %q, which is not a checkpoint's path", f.Name, f.Path)
		case f.Size < lengthBytes:
			return fmt.Errorf("says that %s has %d bytes", f.Name, f.Size)
		case len(f.SHA256) != 2*sha256.Size:
			return fmt.Errorf("says that the SHA-256 of %s is %q", f.Name, f.SHA256)
		}
		seen[f.Name] = true
	}
	return m.checkText()
}

// checkText returns an error if a string is not UTF-8, which JSON could not carry unchanged.
func (m *Manifest) checkText() error {
	for i, output := range m.Outputs {
		if !utf8.ValidString(output) {
			return fmt.Errorf("has output %d, %q, which is not UTF-8", i, output)
		}
	}
	for i, token := range m.Vocabulary {
		if !utf8.ValidString(token) {
			return fmt.Errorf("has token %d of the vocabulary, %q, which is not UTF-8", i, token)
		}
	}
	for name := range m.Metrics {
		if !utf8.ValidString(name) {
			return fmt.Errorf("has a metric %q, which is not UTF-8", name)
		}
	}
	if !utf8.ValidString(m.Job) || !utf8.ValidString(m.Identity) {
		return fmt.Errorf("has job %q and identity %q, which are not UTF-8", m.Job, m.Identity)
	}
	return nil
}

// isFileName reports whether s is a valid name of a checkpoint file: lower-case letters, digits, _
// and - before ".safetensors".
func isFileName(s string) bool {
	base, ok := strings.CutSuffix(s, ".safetensors")
	return ok && base != "" && strings.Trim(base, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// isAttemptPath reports whether s is a file's path within a bucket's attempt sub-folder.
func isAttemptPath(s string) bool {
	attempt, file, ok := strings.Cut(s, "/")
	_, isAttempt := attemptClaim(attempt)
	return ok && isAttempt && isFileName(file)
}
