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
	"math/big"
	"net"
	"net/url"
	"slices"
	"time"
)

// How long certificates are valid. Clocks may differ by skew.
const (
	authorityLife = 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	skew          = 5 * time.Minute
)

// Pair is a certificate and its private key, both in PEM.
type Pair struct{ Cert, Key []byte }

// Leaf says whom a certificate is for.
type Leaf struct {
	Common string
	Hosts  []string // names and IP addresses
	URIs   []*url.URL
}

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // of its certificate, and of others that are trusted too
	list []byte // of revoked certificates, as in RevokedFile; nil: none
}

// NewAuthority makes an authority that is valid for a year.
func NewAuthority(now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "rondo authority"}, IsCA: true,
		BasicConstraintsValid: true, MaxPathLenZero: true, NotBefore: now.Add(-skew),
		NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	return sign(template, template, key, key)
}

// ParseAuthority returns the authority of a pair. The pair's first certificate signs.
func ParseAuthority(p Pair, now time.Time) (*Authority, error) {
	certBlock, _ := pem.Decode(p.Cert)
	keyBlock, _ := pem.Decode(p.Key)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("they are not an authority's certificate and key")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	switch {
	case !ok || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA:
		return nil, errors.New("the key is not that of the first authority")
	case now.After(cert.NotAfter):
		return nil, fmt.Errorf("the authority was valid until %s: remove it with its key, and "+
			"give all processes new certificates", cert.NotAfter.Format(time.RFC3339))
	}
	return &Authority{cert: cert, key: key, pem: p.Cert}, nil
}

// PEM returns the authority's certificate, as others trust it.
func (a *Authority) PEM() []byte { return a.pem }

// until returns the end of a certificate that is signed now.
func (a *Authority) until(now time.Time) time.Time {
	if end := now.Add(leafLife); end.Before(a.cert.NotAfter) {
		return end
	}
	return a.cert.NotAfter
}

// Sign makes a key and its certificate, for servers and clients, valid for 90 days.
func (a *Authority) Sign(leaf Leaf, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: leaf.Common}, URIs: leaf.URIs,
		NotBefore: now.Add(-skew), NotAfter: a.until(now), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if host != "" && !slices.Contains(template.DNSNames, host) {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return sign(template, a.cert, key, a.key)
}

// revoke adds a certificate to the list of those that are not valid any more, unless it is there.
func (a *Authority) revoke(cert *x509.Certificate, now time.Time) (err error) {
	if a.cert.KeyUsage&x509.KeyUsageCRLSign == 0 {
		return errors.New("its authority may not sign lists of revoked certificates: replace the " +
			"authority, as SECURITY.md says")
	}
	list := &x509.RevocationList{}
	if a.list != nil {
		if list, err = x509.ParseRevocationList(a.list); err != nil {
			return err
		}
	}
	for _, entry := range list.RevokedCertificateEntries {
		if entry.SerialNumber.Cmp(cert.SerialNumber) == 0 {
			return nil
		}
	}
	entries := slices.Concat(list.RevokedCertificateEntries,
		[]x509.RevocationListEntry{{SerialNumber: cert.SerialNumber, RevocationTime: now}})
	a.list, err = x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		RevokedCertificateEntries: entries, Number: big.NewInt(int64(len(entries))),
		ThisUpdate: now, NextUpdate: a.cert.NotAfter}, a.cert, a.key)
	return err
}

// LeafOf returns for whom a certificate is.
func LeafOf(cert []byte) (Leaf, error) {
	parsed, err := parse(cert)
	if err != nil {
		return Leaf{}, err
	}
	leaf := Leaf{Common: parsed.Subject.CommonName, Hosts: parsed.DNSNames, URIs: parsed.URIs}
	for _, ip := range parsed.IPAddresses {
		leaf.Hosts = append(leaf.Hosts, ip.String())
	}
	return leaf, nil
}

func parse(cert []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(cert)
	if block == nil {
		return nil, errors.New("it is no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Aged reports whether a certificate has less than half of its life left, or cannot be read.
func Aged(cert []byte, now time.Time) bool {
	parsed, err := parse(cert)
	return err != nil || parsed.NotAfter.Sub(now) < parsed.NotAfter.Sub(parsed.NotBefore)/2
}

// sign makes a certificate of a key, signed by its parent's.
func sign(template, parent *x509.Certificate, own, by *ecdsa.PrivateKey) (p Pair, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return p, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), by)
	if err != nil {
		return p, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return p, err
	}
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}, nil
}
