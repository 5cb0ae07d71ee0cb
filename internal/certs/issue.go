package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// AuthorityKeyFile is the authority's private key in the folder that Issue writes. It stays on the
// machine that issues certificates.
const AuthorityKeyFile = "ca.key"

// How long certificates are valid. Clocks may differ by skew.
const (
	authorityLife = 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	skew          = 5 * time.Minute
)

// Issue writes a certificate for the processes of jobs on these hosts, names or IP addresses, to a
// folder. If the folder has an authority with its key, that signs; otherwise Issue makes one. It
// returns the time until which the certificate is valid. The folder is of the kind that Load reads;
// processes that read it take up the new certificate without a restart.
func Issue(dir string, hosts []string, now time.Time) (until time.Time, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return until, err
	}
	authority, key, err := authority(dir, now)
	if err != nil {
		return until, err
	}
	until = now.Add(leafLife)
	if authority.NotAfter.Before(until) {
		until = authority.NotAfter
	}
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: Name}, NotBefore: now.Add(-skew),
		NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		DNSNames:    []string{Name, "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else if host != "" && !slices.Contains(leaf.DNSNames, host) {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return until, err
	}
	der, err := sign(leaf, authority, own, key)
	if err == nil {
		err = writePair(dir, CertFile, der, KeyFile, own)
	}
	return until, err
}

// authority returns the folder's authority and its key, and makes them if neither is there.
func authority(dir string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certFile, keyFile := filepath.Join(dir, TrustFile), filepath.Join(dir, AuthorityKeyFile)
	text, err := os.ReadFile(certFile)
	private, keyErr := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		return newAuthority(dir, now)
	}
	if err != nil || keyErr != nil {
		return nil, nil, fmt.Errorf("%w: both files of an authority are needed, or none",
			errors.Join(err, keyErr))
	}
	certBlock, _ := pem.Decode(text)
	keyBlock, _ := pem.Decode(private)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, fmt.Errorf("%s and %s are not an authority's certificate and key",
			certFile, keyFile)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", certFile, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	switch {
	case !ok || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA:
		return nil, nil, fmt.Errorf("%s is not the key of the authority in %s", keyFile, certFile)
	case now.After(cert.NotAfter):
		return nil, nil, fmt.Errorf("the authority in %s was valid until %s: remove it and %s, "+
			"and give all processes the new files", certFile, cert.NotAfter.Format(time.RFC3339),
			keyFile)
	}
	return cert, key, nil
}

func newAuthority(dir string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "rondo authority"}, IsCA: true,
		BasicConstraintsValid: true, MaxPathLenZero: true, NotBefore: now.Add(-skew),
		NotAfter: now.Add(authorityLife), KeyUsage: x509.KeyUsageCertSign}
	der, err := sign(template, template, key, key)
	if err != nil {
		return nil, nil, err
	}
	if err := writePair(dir, TrustFile, der, AuthorityKeyFile, key); err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// sign returns a certificate of a key, signed by its parent's.
func sign(
	template, parent *x509.Certificate, of, by *ecdsa.PrivateKey,
) (der []byte, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, err
	}
	return x509.CreateCertificate(rand.Reader, template, parent, of.Public(), by)
}

// writePair writes a certificate and its key. A process that reads between the two keeps what it
// has: the two do not fit.
func writePair(dir, certFile string, der []byte, keyFile string, key *ecdsa.PrivateKey) error {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name  string
		block pem.Block
	}{{keyFile, pem.Block{Type: "PRIVATE KEY", Bytes: private}},
		{certFile, pem.Block{Type: "CERTIFICATE", Bytes: der}}} {
		path := filepath.Join(dir, file.name)
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(&file.block), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}
