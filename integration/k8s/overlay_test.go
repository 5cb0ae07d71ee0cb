package k8s

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// overlaySpace is the namespace that all overlays name.
const overlaySpace = "rondo"

// definition is a kind that an overlay uses and a bare cluster lacks, and the module that publishes
// it. Without a module, the cluster must have it.
type definition struct{ overlay, kind, module, file string }

const (
	prometheusModule = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
	prometheusFiles  = "example/prometheus-operator-crd/monitoring.coreos.com_"
	certsModule      = "github.com/cert-manager/cert-manager@v1.18.2"
	certsFiles       = "deploy/crds/crd-"
)

var definitions = []definition{
	{"monitoring", "servicemonitors.monitoring.coreos.com", prometheusModule,
		prometheusFiles + "servicemonitors.yaml"},
	{"monitoring", "podmonitors.monitoring.coreos.com", prometheusModule,
		prometheusFiles + "podmonitors.yaml"},
	{"tls", "certificates.cert-manager.io", certsModule, certsFiles + "certificates.yaml"},
	{"tls", "issuers.cert-manager.io", certsModule, certsFiles + "issuers.yaml"},
	{"jobset", "jobsets.jobset.x-k8s.io", "", ""},
}

// TestOverlays: the API server takes every overlay, and none would violate Pod Security.
func TestOverlays(t *testing.T) {
	c := connect(t)
	c.overlaySpace(t)
	overlays, err := os.ReadDir("../../k8s/overlays")
	if err != nil || len(overlays) < 8 {
		t.Fatalf("%d overlays, %v", len(overlays), err)
	}
	for _, overlay := range overlays {
		t.Run(overlay.Name(), func(t *testing.T) {
			for _, need := range definitions {
				if need.overlay == overlay.Name() {
					c.define(t, need)
				}
			}
			// --warnings-as-errors: a violation of the namespace's Pod Security is a warning.
			out, err := output(t, "", c.kubectl, "apply", "--dry-run=server",
				"--warnings-as-errors", "-k", filepath.Join("../../k8s/overlays", overlay.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(out, "(server dry run)"); n < 10 {
				t.Errorf("%d objects:\n%s", n, out)
			}
		})
	}
}

// overlaySpace makes the overlays' namespace if it is not there. A dry run puts nothing into it.
func (c *cluster) overlaySpace(t *testing.T) {
	t.Helper()
	spaces := c.client.CoreV1().Namespaces()
	_, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: overlaySpace,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted",
			"pod-security.kubernetes.io/warn": "restricted"},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := output(t, "", c.kubectl, "delete", "namespace", overlaySpace); err != nil {
			t.Error(err)
		}
	})
}

// define makes a kind known to the cluster, until the test's end, unless it is.
func (c *cluster) define(t *testing.T, d definition) {
	t.Helper()
	if _, err := output(t, "", c.kubectl, "get", "crd", d.kind); err == nil {
		return
	}
	if d.module == "" {
		t.Skipf("the cluster does not know %s: install what brings it", d.kind)
	}
	out, err := output(t, "", "go", "mod", "download", "-json", d.module)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(found.Dir, d.file))
	if err != nil {
		t.Fatal(err)
	}
	// Some are a chart's templates; their labels do not matter.
	var plain strings.Builder
	for line := range strings.Lines(string(content)) {
		if !strings.Contains(line, "{{") {
			plain.WriteString(line)
		}
	}
	if _, err := output(t, plain.String(), c.kubectl, "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := output(t, "", c.kubectl, "delete", "crd", d.kind); err != nil {
			t.Error(err)
		}
	})
	until(t, time.Minute, d.kind+" served", func() bool {
		_, err := output(t, "", c.kubectl, "get", d.kind, "-n", "default")
		return err == nil
	})
}
