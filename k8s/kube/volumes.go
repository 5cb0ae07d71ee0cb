package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rondo/corpus/location"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// maxText is the number of bytes of text that a ConfigMap of the job may hold. The API server
// limits an object to 1 MiB.
const maxText = 900 << 10

// textName comes after the job's name in the name of the ConfigMap of its texts.
const textName = "-text-"

// Folders of mounted volumes.
const (
	claimsAt     = "/mnt/pvc/"
	configMapsAt = "/mnt/configmap/"
)

// bundle puts the texts of this machine into a ConfigMap of the job, and names them there in the
// submission. It returns nil if there are none.
func (s *Submission) bundle(job string) (*corev1.ConfigMap, error) {
	texts := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		Data:     map[string]string{}, BinaryData: map[string][]byte{},
	}
	sum, total := sha256.New(), 0
	places := map[string]string{} // key of the spec: key of the ConfigMap
	for _, key := range []string{"corpus", "eval_corpus", "vectors", "tokenizer"} {
		file := s.Spec[key]
		if key == "tokenizer" {
			file = jobspec.TokenizerFile(&rondov1.JobSpec{Tokenizer: file})
		}
		if !isLocal(file) {
			continue
		}
		file = strings.TrimPrefix(file, "file://")
		flag := "--" + strings.ReplaceAll(key, "_", "-")
		content, err := readText(flag, file)
		if err != nil {
			return nil, err
		}
		if total += len(content); total > maxText {
			return nil, tooLarge(flag, file, int64(total))
		}
		name := filepath.Base(file)
		if len(validation.IsConfigMapKey(name)) > 0 || texts.Data[name] != "" {
			name = strings.ReplaceAll(key, "_", "-")
		}
		places[key] = name
		fmt.Fprintf(sum, "%s %d\n%s", name, len(content), content)
		if utf8.Valid(content) {
			texts.Data[name] = string(content)
		} else {
			texts.BinaryData[name] = content
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	texts.Name = job + textName + hex.EncodeToString(sum.Sum(nil)[:5])
	for key, name := range places {
		s.Spec[key] = "configmap://" + texts.Name + "/" + name
	}
	return texts, nil
}

// isLocal reports whether a text is on this machine: its location has no other scheme.
func isLocal(location string) bool {
	file := strings.TrimPrefix(location, "file://")
	return file != "" && !strings.Contains(file, "://") && !strings.HasPrefix(file, "builtin:")
}

// readText reads a file of this machine that fits into the ConfigMap.
func readText(flag, file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, app.Usagef("%s: %w: give a file of this machine, pvc://CLAIM/PATH, or a "+
			"bucket's URL", flag, err)
	}
	if !info.Mode().IsRegular() {
		return nil, app.Usagef("%s %s is not a file", flag, file)
	}
	if info.Size() > maxText {
		return nil, tooLarge(flag, file, info.Size())
	}
	content, err := os.ReadFile(file)
	return content, app.Usage(err)
}

func tooLarge(flag, file string, size int64) error {
	return app.Usagef("%s %s: %d KiB of text are too much to travel with the job (at most %d "+
		"KiB): copy it to a volume and give pvc://CLAIM/%s, or to a bucket and give s3://BUCKET/%s",
		flag, file, size>>10, maxText>>10, filepath.Base(file), filepath.Base(file))
}

// Outside returns a text of a pod with the paths in claims as people give them, pvc://CLAIM/PATH.
func Outside(text string) string { return strings.ReplaceAll(text, claimsAt, "pvc://") }

// mounts holds the volumes of a job's locations.
type mounts struct {
	volumes []corev1.Volume
	mounts  []corev1.VolumeMount
	buckets []*url.URL // read or written
}

// place replaces the spec's locations by those inside a pod, and returns the volumes to mount.
func place(spec *rondov1.JobSpec) (*mounts, error) {
	if at := spec.AuditDir; at != "" && !strings.HasPrefix(at, "pvc://") {
		return nil, app.Usagef("--audit-dir %s: logs are appended to, and outlive their pods: "+
			"give a volume, pvc://CLAIM/PATH", at)
	}
	if at := spec.Trace; at != "" && !strings.HasPrefix(at, "pvc://") {
		return nil, app.Usagef("--trace %s: traces grow, and outlive their pods: give a volume, "+
			"pvc://CLAIM/PATH", at)
	}
	m := &mounts{}
	for _, at := range []struct {
		flag   string
		value  *string
		writes bool
	}{
		{"--corpus", &spec.Corpus, false}, {"--eval-corpus", &spec.EvalCorpus, false},
		{"--vectors", &spec.Vectors, false}, {"--tokenizer", &spec.Tokenizer, false},
		{"--checkpoint-dir", &spec.CheckpointDir, true}, {"--audit-dir", &spec.AuditDir, true},
		{"--trace", &spec.Trace, true},
	} {
		if at.value == &spec.Tokenizer && jobspec.TokenizerFile(spec) == "" {
			continue
		}
		parts := []string{*at.value}
		if strings.HasSuffix(at.flag, "corpus") && task.Texts(spec.Task) {
			parts = location.All(*at.value)
		}
		for i, part := range parts {
			inside, err := m.place(at.flag, part, at.writes)
			if err != nil {
				return nil, err
			}
			parts[i] = inside
		}
		*at.value = strings.Join(parts, ",")
	}
	return m, nil
}

// place returns a location inside a pod.
func (m *mounts) place(flag, location string, writes bool) (string, error) {
	scheme, rest, _ := strings.Cut(location, "://")
	name, inside, _ := strings.Cut(rest, "/")
	switch {
	case location == "" || strings.HasPrefix(location, "builtin:"):
		return location, nil
	case writes && flag == "--checkpoint-dir" && location == jobspec.NoCheckpoints:
		return location, nil
	case scheme == "pvc":
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return "", app.Usagef("%s %s: %q is no name of a claim: give pvc://CLAIM/PATH", flag,
				location, name)
		}
		if !writes && path.Clean("/"+inside) == "/" {
			return "", app.Usagef("%s %s is not pvc://CLAIM/PATH: it names no file of the claim",
				flag, location)
		}
		at := claimsAt + name
		m.mount(at, !writes, corev1.VolumeSource{PersistentVolumeClaim: &corev1.
			PersistentVolumeClaimVolumeSource{ClaimName: name}})
		return path.Join(at, path.Clean("/"+inside)), nil
	case scheme == "configmap" && !writes:
		if len(validation.IsDNS1123Subdomain(name)) > 0 ||
			len(validation.IsConfigMapKey(inside)) > 0 {
			return "", app.Usagef("%s %s is not configmap://NAME/KEY", flag, location)
		}
		m.mount(configMapsAt+name, true, corev1.VolumeSource{ConfigMap: &corev1.
			ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}})
		return configMapsAt + name + "/" + inside, nil
	case scheme == "s3", scheme == "gs":
		bucket, err := url.Parse(location)
		if err != nil || bucket.Host == "" {
			return "", app.Usagef("%s %s is not %s://BUCKET/PATH", flag, location, scheme)
		}
		if _, err := strconv.ParseUint(portOf(bucket), 10, 16); err != nil {
			return "", app.Usagef("%s %s: the port of endpoint is not 1 to 65535", flag, location)
		}
		m.buckets = append(m.buckets, bucket)
		return location, nil
	case writes:
		return "", app.Usagef("%s %s is lost with the pod that writes it: give a volume, "+
			"pvc://CLAIM/PATH, or a bucket, s3://BUCKET/PATH", flag, location)
	}
	return "", app.Usagef("%s %s cannot be read by pods: give a volume, pvc://CLAIM/PATH, a "+
		"bucket, s3://BUCKET/PATH, or copy it to a file of this machine", flag, location)
}

// mount adds a volume once. It is read-only if all of its users only read.
func (m *mounts) mount(at string, readOnly bool, source corev1.VolumeSource) {
	for i := range m.mounts {
		if m.mounts[i].MountPath == at {
			m.mounts[i].ReadOnly = m.mounts[i].ReadOnly && readOnly
			return
		}
	}
	name := fmt.Sprint("volume-", len(m.volumes)) // a claim's can be too long for a volume's
	m.volumes = append(m.volumes, corev1.Volume{Name: name, VolumeSource: source})
	m.mounts = append(m.mounts,
		corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
}
