// Package certstest makes certificates for tests. Only tests import it.
package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rondo/internal/certs"
)

// Job is the job of a certificate's processes, unless Authority.Names says otherwise.
const Job = "demo"

// Authority signs certificates.
type Authority struct {
	// Names are the processes that certificates name; New sets all roles of Job.
	Names []certs.Process
	// Common is the common name of certificates; empty: the first process's user of etcd.
	Common string

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns a new authority.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t), Names: All(Job)}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true,
		Subject: pkix.Name{CommonName: "test authority"}, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Open returns the authority in a folder that certs.Issue has written.
func Open(t testing.TB, folder string) *Authority {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, certs.TrustFile),
		filepath.Join(folder, certs.AuthorityKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t: t, cert: pair.Leaf, key: pair.PrivateKey.(*ecdsa.PrivateKey)}
}

// All returns a job's processes of all roles.
func All(job string) []certs.Process {
	var all []certs.Process
	for _, role := range certs.Roles() {
		all = append(all, certs.Process{Namespace: "test", Job: job, Role: role})
	}
	return all
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Issue writes a certificate and its key to dir and returns dir. It is valid until the given time,
// for names and for 127.0.0.1.
func (a *Authority) Issue(dir string, until time.Time, names ...string) string {
	a.t.Helper()
	return a.IssueFor(dir, until, []net.IP{net.IPv4(127, 0, 0, 1)}, names...)
}

// IssueFor is Issue for other addresses.
func (a *Authority) IssueFor(dir string, until time.Time, ips []net.IP, names ...string) string {
	a.t.Helper()
	return a.issue(dir, until, ips, names, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// IssueUse is Issue for one use only, for an hour.
func (a *Authority) IssueUse(dir string, use x509.ExtKeyUsage, names ...string) string {
	a.t.Helper()
	return a.issue(dir, time.Now().Add(time.Hour), []net.IP{net.IPv4(127, 0, 0, 1)}, names, use)
}

func (a *Authority) issue(
	dir string, until time.Time, ips []net.IP, names []string, uses ...x509.ExtKeyUsage,
) string {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: pkix.Name{CommonName: a.common()}, DNSNames: names,
		IPAddresses: ips, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: uses}
	for _, p := range a.Names {
		uri, err := url.Parse(p.String())
		if err != nil {
			a.t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		certs.CertFile:  {Type: "CERTIFICATE", Bytes: der},
		certs.KeyFile:   {Type: "PRIVATE KEY", Bytes: private},
		certs.TrustFile: {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return dir
}

// Member writes valid certificates of a member of etcd to a tree, as certs.Issue does, but with one
// authority, and returns the tree.
func (a *Authority) Member(tree string) string {
	names := a.Names
	defer func() { a.Names = names }()
	a.Names = nil
	for _, folder := range []string{certs.EtcdFolder, certs.PeerFolder} {
		a.Good(filepath.Join(tree, folder))
	}
	return tree
}

// common returns the common name of certificates.
func (a *Authority) common() string {
	switch {
	case a.Common != "":
		return a.Common
	case len(a.Names) == 0:
		return certs.EtcdRoot
	}
	return a.Names[0].User()
}

// Good writes a valid certificate of a job's process to dir and returns dir.
func (a *Authority) Good(dir string) string {
	return a.Issue(dir, time.Now().Add(time.Hour), certs.Name)
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}
