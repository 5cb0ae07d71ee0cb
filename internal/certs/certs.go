// Package certs is a process's identity on the network: a certificate, its key and the authority
// that both ends of a connection trust, in a folder as cert-manager's secrets have them. What it
// gives serves mutual TLS, and reads the folder anew for each connection, so that certificates are
// renewed without a restart. It knows no service and issues nothing. It may import crypto/tls and
// gRPC's credentials.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// The files of a folder.
const (
	CertFile  = "tls.crt" // the certificate, and what stands between it and the authority
	KeyFile   = "tls.key"
	TrustFile = "ca.crt"
)

// Name is what the certificates of a job's processes are valid for, whatever their addresses.
const Name = "rondo"

// Identity is a folder's content as it was when it was last sound.
type Identity struct {
	dir string

	mu      sync.Mutex
	content [3][]byte
	own     *tls.Certificate
	trusted *x509.CertPool

	refused atomic.Pointer[error]
}

// Load reads a folder. The error names the file at fault. A certificate that has expired is no
// error: it may be renewed at any moment, and until then the other ends say so.
func Load(dir string) (*Identity, error) {
	i := &Identity{dir: dir}
	if err := i.read(); err != nil {
		return nil, fmt.Errorf("--tls %s: %w", dir, err)
	}
	return i, nil
}

func (i *Identity) path(name string) string { return filepath.Join(i.dir, name) }

// read takes the files in, unless they are as they were.
func (i *Identity) read() error {
	var content [3][]byte
	for n, name := range []string{CertFile, KeyFile, TrustFile} {
		var err error
		if content[n], err = os.ReadFile(i.path(name)); err != nil {
			return fmt.Errorf("%w (the folder needs %s, %s and %s)", err, CertFile, KeyFile,
				TrustFile)
		}
	}
	if i.own != nil && bytes.Equal(content[0], i.content[0]) &&
		bytes.Equal(content[1], i.content[1]) && bytes.Equal(content[2], i.content[2]) {
		return nil
	}
	own, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", i.path(CertFile), i.path(KeyFile), err)
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(content[2]) {
		return fmt.Errorf("%s has no certificate", i.path(TrustFile))
	}
	var invalid x509.CertificateInvalidError
	err = check(chain(own.Certificate), trusted, "")
	if err != nil && !(errors.As(err, &invalid) && invalid.Reason == x509.Expired) {
		return fmt.Errorf("%s is not signed by what %s holds: %w", i.path(CertFile), TrustFile, err)
	}
	i.content, i.own, i.trusted = content, &own, trusted
	return nil
}

// newest is the folder's content now. While the files are being replaced it is what they were.
func (i *Identity) newest() (*tls.Certificate, *x509.CertPool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = i.read() // the old ones serve until the new ones are whole
	return i.own, i.trusted
}

// Server is for who is called. Whoever has a certificate of the same authority may call, so that
// the authority should be one of the cluster's own.
func (i *Identity) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert, // and verified below
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			own, _ := i.newest()
			return own, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error { return i.verify(s, "") },
	}
}

// Client is for who calls a server of this name; empty: that of the address.
func (i *Identity) Client(serverName string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			own, _ := i.newest()
			return own, nil
		},
		// The roots of a configuration are read once; these are read for each connection.
		InsecureSkipVerify: true, //nolint:gosec // verified below
		VerifyConnection:   func(s tls.ConnectionState) error { return i.verify(s, s.ServerName) },
	}
}

// verify holds the other end's certificates to the authority, and a server's to its name.
func (i *Identity) verify(s tls.ConnectionState, name string) error {
	_, trusted := i.newest()
	if len(s.PeerCertificates) == 0 {
		return errors.New("the other end shows no certificate")
	}
	leaf := s.PeerCertificates[0]
	err := check(s.PeerCertificates, trusted, name)
	var foreign x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &foreign):
		return fmt.Errorf("its certificate (%s) is not signed by the authority in %s",
			leaf.Subject, i.path(TrustFile))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its certificate (%s) is valid from %s to %s: renew it, or set its clock",
			leaf.Subject, leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
	}
	return fmt.Errorf("its certificate (%s): %w", leaf.Subject, err)
}

// check verifies the first certificate, with the others on its way to the authority.
func check(certs []*x509.Certificate, trusted *x509.CertPool, name string) error {
	if len(certs) == 0 {
		return errors.New("no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{Roots: trusted, Intermediates: between,
		DNSName: name, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// chain parses what X509KeyPair has seen to be certificates; what it has not is left out.
func chain(der [][]byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for _, d := range der {
		if c, err := x509.ParseCertificate(d); err == nil {
			certs = append(certs, c)
		}
	}
	return certs
}
