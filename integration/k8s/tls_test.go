package k8s

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/job/jobspec"
)

// TestTLS: a job whose processes speak TLS alone trains and completes on a cluster without
// cert-manager, with the Secrets that a person has made. Who has no certificate is refused.
func TestTLS(t *testing.T) {
	c := connect(t)
	n := c.namespace(t, "tls")
	a := newAuthority(t)
	role := func(secret, role string) tls.Certificate {
		return n.secret(secret, a, &x509.Certificate{DNSNames: []string{"rondo"},
			Subject: pkix.Name{CommonName: "rondo/" + role},
			URIs:    []*url.URL{{Scheme: "rondo", Host: n.name, Path: "/rondo/" + role}}})
	}
	worker := role("rondo-worker-tls", "worker")
	role("rondo-coordinator-tls", "coordinator")
	person := role("rondo-observer-tls", "user")
	for secret, by := range map[string]*authority{"rondo-etcd-tls": a,
		"rondo-etcd-peer-tls": newAuthority(t)} {
		n.secret(secret, by, &x509.Certificate{Subject: pkix.Name{CommonName: "root"},
			DNSNames: []string{"rondo", "rondo-etcd", "rondo-etcd-0.rondo-etcd",
				"rondo-etcd-1.rondo-etcd", "rondo-etcd-2.rondo-etcd", "localhost"}})
	}
	const steps = 400
	j := &trial{steps: steps, job: &job{namespace: n, name: "rondo",
		flags: small("--steps", fmt.Sprint(steps))}}
	n.do("apply", "-k", n.withoutCertManager(slices.Concat(j.flags, []string{"--workers", "2",
		"--inject", paced})))
	j.awaitStep(submitTimeout, 1)
	j.awaitRing(2)

	trusting := tls.Config{RootCAs: a.pool, ServerName: "rondo"}
	for _, to := range []struct {
		pod  string
		port int
		as   tls.Certificate
	}{{"rondo-etcd-0", 2379, person}, {j.serving("worker")[0].Name, 7000, worker},
		{j.leader().Name, 7000, person}} {
		certified := trusting.Clone()
		certified.Certificates = []tls.Certificate{to.as}
		for _, as := range []struct {
			what    string
			client  credentials.TransportCredentials
			arrives bool
		}{
			{"by TLS with a certificate", credentials.NewTLS(certified), true},
			{"by TLS without a certificate", credentials.NewTLS(&trusting), false},
			{"without TLS", insecure.NewCredentials(), false},
		} {
			arrives, err := n.call(to.pod, to.port, as.client)
			if arrives != as.arrives {
				t.Errorf("%s, port %d, %s: %v", to.pod, to.port, as.what, err)
			}
		}
	}
	j.checkRing(2)
	j.end()
	j.checkCurve(j.seen.curve(t))
}

// withoutCertManager writes the TLS overlay for this namespace and these flags without
// cert-manager's objects, and returns the folder.
func (n *namespace) withoutCertManager(flags []string) string {
	n.t.Helper()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	given := jobspec.AddFlags(set)
	if err := set.Parse(flags); err != nil {
		n.t.Fatal(err)
	}
	spec, err := given.Spec()
	if err != nil {
		n.t.Fatal(err)
	}
	job, err := jobspec.ToYAML(spec)
	if err != nil {
		n.t.Fatal(err)
	}
	folder := n.t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		n.t.Fatal(err)
	}
	manifests, err := filepath.Rel(folder, filepath.Join(here, "../../k8s"))
	if err != nil {
		n.t.Fatal(err)
	}
	image := regexp.MustCompile(`^(.+):([^:/]+)$`).FindStringSubmatch(n.ours(n.t))
	if image == nil {
		n.t.Fatalf("image %q has no tag", n.ours(n.t))
	}
	for name, content := range map[string]string{"job.yaml": string(job),
		"kustomization.yaml": fmt.Sprintf(kustomization, n.name, manifests, manifests, image[1],
			image[2])} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	return folder
}

const kustomization = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: %s
resources: [%s/overlays/tls]
components: [%s/components/ephemeral-etcd]
images: [{name: rondo, newName: %q, newTag: %q}]
configMapGenerator: [{name: rondo-spec, behavior: replace, files: [job.yaml]}]
patches:
- target: {group: cert-manager.io}
  patch: "{$patch: delete, apiVersion: v1, kind: any, metadata: {name: any}}"
- target: {kind: Job}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 250m}
    - {op: replace, path: /spec/template/spec/containers/0/resources/limits/cpu, value: 250m}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --allow-inject}
`

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.cert, a.key = a.sign(t, &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true,
		Subject: pkix.Name{CommonName: "test"}, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	a.pool.AddCert(a.cert)
	return a
}

// sign makes a key and a certificate of it; the first is the authority's own.
func (a *authority) sign(t *testing.T, what *x509.Certificate) (*x509.Certificate,
	*ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	what.NotBefore, what.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	by, with := a.cert, a.key
	if by == nil {
		by, with = what, key
	}
	der, err := x509.CreateCertificate(rand.Reader, what, by, key.Public(), with)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// secret makes a Secret as cert-manager does, with a certificate of this kind, and returns that.
func (n *namespace) secret(name string, a *authority, what *x509.Certificate) tls.Certificate {
	n.t.Helper()
	what.SerialNumber = big.NewInt(time.Now().UnixNano())
	what.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert, key := a.sign(n.t, what)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		n.t.Fatal(err)
	}
	armoured := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	_, err = n.client.CoreV1().Secrets(n.name).Create(n.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": armoured("CERTIFICATE", cert.Raw),
			"tls.key": armoured("PRIVATE KEY", private),
			"ca.crt":  armoured("CERTIFICATE", a.cert.Raw)}}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// call sends a request to a pod as a gRPC client with these credentials, and reports whether it
// arrives. Not all servers know an answer.
func (n *namespace) call(pod string, port int, as credentials.TransportCredentials) (arrives bool,
	err error) {
	n.t.Helper()
	forward := begin(n.t, n.cluster.kubectl, "-n", n.name, "port-forward", "pod/"+pod,
		fmt.Sprintf(":%d", port))
	defer func() { _ = forward.cmd.Process.Kill() }()
	address := forward.says("its port", func(out string) string {
		found := regexp.MustCompile(`from (127\.0\.0\.1:\d+)`).FindStringSubmatch(out)
		if found == nil {
			return ""
		}
		return found[1]
	})
	client, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(as))
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	_, err = health.NewHealthClient(client).Check(ctx, &health.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.OK, codes.Unimplemented:
		return true, err
	case codes.Unavailable: // no connection
		return false, err
	}
	n.t.Fatalf("%s, port %d: neither an answer nor a refusal: %v", pod, port, err)
	return false, err
}
