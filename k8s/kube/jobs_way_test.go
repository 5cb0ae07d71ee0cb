package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWayWithTLS: the certificate of the job's pods lies where only this user can read it, and is
// gone with the way.
func TestWayWithTLS(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	raw := someJob(1, nil)
	pod := &raw.Spec.Template.Spec
	pod.Containers[0].Args = []string{"--listen=:7000", "--tls=/tls"}
	job := jobOf(raw)
	if _, err := clusterOf().Way(t.Context(), job); err == nil ||
		!strings.Contains(err.Error(), "mounts no Secret at /tls") {
		t.Errorf("without a volume: %v", err)
	}
	pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "tls", MountPath: "/tls"}}
	pod.Volumes = []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: "rondo-tls"}}}}
	if _, err := clusterOf().Way(t.Context(), job); err == nil ||
		!strings.Contains(err.Error(), "secret rondo-tls") {
		t.Errorf("without the Secret: %v", err)
	}
	way, err := clusterOf(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "rondo-tls",
		Namespace: "here"}, Data: map[string][]byte{"tls.crt": []byte("a"),
		"tls.key": []byte("b"), "ca.crt": []byte("c")}}).Way(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"tls.crt": "a", "tls.key": "b", "ca.crt": "c"} {
		path := filepath.Join(way.TLS, name)
		text, err := os.ReadFile(path)
		if err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s can be read by others: %v", name, info.Mode())
		}
	}
	way.Close()
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("after Close there are %v, %v", left, err)
	}
}
