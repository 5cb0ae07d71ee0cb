package certs

import (
	"crypto/x509"
	"errors"
)

// trust says whom a process believes.
type trust struct {
	authorities *x509.CertPool
	revoked     map[string]bool // serial numbers
}

// errListGone: the list of revoked certificates that a folder had is not there any more.
var errListGone = errors.New(RevokedFile + " is gone: what it listed is accepted again, if its " +
	"authority is still trusted")

// errRevoked: a certificate is in the list of those that are not valid any more.
var errRevoked = errors.New("it is revoked")

// check verifies the first certificate for a use; the others are intermediates.
func (t trust) check(certs []*x509.Certificate, use x509.ExtKeyUsage) error {
	if len(certs) == 0 {
		return errors.New("no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{Roots: t.authorities, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{use}})
	if err != nil {
		return err
	}
	return t.checkRevoked(certs)
}

func (t trust) checkRevoked(certs []*x509.Certificate) error {
	for _, c := range certs {
		if t.revoked[c.SerialNumber.String()] {
			return errRevoked
		}
	}
	return nil
}

// parseRevoked returns the serial numbers of a list. Like etcd it checks neither the signature nor
// the age: whoever can write the file can write the authorities beside it, and nothing fetches a
// newer list.
func parseRevoked(der []byte) (map[string]bool, error) {
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, err
	}
	revoked := make(map[string]bool, len(list.RevokedCertificateEntries))
	for _, entry := range list.RevokedCertificateEntries {
		revoked[entry.SerialNumber.String()] = true
	}
	return revoked, nil
}
