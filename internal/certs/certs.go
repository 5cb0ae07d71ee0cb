// Package certs is a process's identity on the network: a certificate, which names the process's
// job and role, its key and the authority that both ends of a connection trust. They lie in a
// folder, in the layout of cert-manager's secrets. The package provides mutual TLS between
// processes of one job. It reads the folder again for each connection, so that certificates can be
// renewed without a restart. Issue makes such folders. The package knows no service. It may import
// crypto and gRPC, and nothing of this module.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The files of a folder.
const (
	CertFile  = "tls.crt" // the certificate and its intermediates
	KeyFile   = "tls.key"
	TrustFile = "ca.crt"
	// RevokedFile, if there is one, lists certificates that are not valid any more (RFC 5280, DER).
	RevokedFile = "ca.crl"
)

// Name is the name that all certificates of a job's processes are valid for, independent of
// addresses.
const Name = "rondo"

// EtcdRoot is the common name of etcd's members, and the name of etcd's user who may do everything.
const EtcdRoot = "root"

// Folders of a tree that Issue makes; see also jobFolder.
const (
	EtcdFolder = "etcd" // of etcd's members, for clients
	PeerFolder = "peer" // of etcd's members, for each other, by an authority of their own
	jobsFolder = "jobs"
)

// jobFolder returns a process's folder in a tree that Issue makes.
func jobFolder(tree, job string, role Role) string {
	return filepath.Join(tree, jobsFolder, job, string(role))
}

// Identity is the last valid content of a folder.
type Identity struct {
	dir  string
	job  string // empty: of no job's process
	role Role

	mu      sync.Mutex
	content [4][]byte
	own     *tls.Certificate
	is      Process
	trusted trust
	faults  *refusalLog // of new files; nil: no log

	refused atomic.Pointer[error]
}

// Load reads the certificate of a process with a role in a job: from the process's folder in a tree
// that Issue has made or, if there is none, from the folder itself. The error names the faulty
// file. An expired certificate is no error: it may be renewed at any time, and until then the peers
// report it.
func Load(folder, job string, role Role) (*Identity, error) {
	i := &Identity{dir: jobFolder(folder, job, role), job: job, role: role}
	_, inTree := os.Stat(i.dir)
	_, err := os.Stat(filepath.Join(folder, CertFile))
	if errors.Is(inTree, fs.ErrNotExist) && err == nil {
		i.dir = folder
	}
	if err := i.read(); err != nil {
		return nil, fmt.Errorf("--tls %s: %w", folder, err)
	}
	return i, nil
}

// LoadEtcd reads the certificate of a member of etcd, which is of no job, from a folder of a tree
// that Issue has made.
func LoadEtcd(tree, folder string) (*Identity, error) {
	i := &Identity{dir: filepath.Join(tree, folder)}
	if err := i.read(); err != nil {
		return nil, fmt.Errorf("--tls %s: %w", tree, err)
	}
	return i, nil
}

func (i *Identity) path(name string) string { return filepath.Join(i.dir, name) }

// read reads the files again if they have changed.
func (i *Identity) read() error {
	var content [4][]byte
	for n, name := range []string{CertFile, KeyFile, TrustFile, RevokedFile} {
		var err error
		content[n], err = os.ReadFile(i.path(name))
		if err != nil && !(name == RevokedFile && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("%w (%s needs %s, %s and %s%s)", err, i.dir, CertFile, KeyFile,
				TrustFile, i.remedy())
		}
	}
	if i.own != nil && slices.EqualFunc(content[:], i.content[:], bytes.Equal) {
		return nil
	}
	own, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", i.path(CertFile), i.path(KeyFile), err)
	}
	trusted := trust{authorities: x509.NewCertPool()}
	if !trusted.authorities.AppendCertsFromPEM(content[2]) {
		return fmt.Errorf("%s has no certificate", i.path(TrustFile))
	}
	// An own certificate that is revoked is no error either: a new one may be on its way. The list
	// counts at once.
	var invalid x509.CertificateInvalidError
	err = trusted.check(chain(own.Certificate), x509.ExtKeyUsageAny)
	if err != nil && !(errors.As(err, &invalid) && invalid.Reason == x509.Expired) {
		return fmt.Errorf("%s is not signed by a certificate in %s: %w", i.path(CertFile),
			TrustFile, err)
	}
	is, err := i.find(own.Certificate)
	if err != nil {
		return err
	}
	if content[3] != nil {
		if trusted.revoked, err = parseRevoked(content[3]); err != nil {
			return fmt.Errorf("%s: %w", i.path(RevokedFile), err)
		}
	}
	i.content, i.own, i.is, i.trusted = content, &own, is, trusted
	return nil
}

// find returns the process of the identity's job and role that the certificate names.
func (i *Identity) find(der [][]byte) (Process, error) {
	if i.job == "" {
		return Process{}, nil
	}
	for _, p := range Processes(chain(der)[0]) {
		if p.Job == i.job && p.Role == i.role {
			return p, nil
		}
	}
	return Process{}, fmt.Errorf("%s is not for a %s of job %s: among its names it needs the URI "+
		"%s://NAMESPACE/%s/%s%s", i.path(CertFile), i.role, i.job, scheme, i.job, i.role,
		i.remedy())
}

// remedy ends an error about a certificate that is missing.
func (i *Identity) remedy() string {
	if i.job == "" {
		return "; rondo certs makes them"
	}
	return "; rondo certs --job " + i.job + " makes one"
}

// process returns this process's identity from its certificate.
func (i *Identity) process() Process {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.is
}

// report has a log receive a line for each fault of new files; nil: no log.
func (i *Identity) report(log *slog.Logger) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if log != nil && i.faults == nil {
		i.faults = newRefusalLog(log)
	}
}

// newest returns the folder's current content. While the files are being replaced, and if they are
// faulty, it returns the last valid content.
func (i *Identity) newest() (*tls.Certificate, trust) {
	i.mu.Lock()
	defer i.mu.Unlock()
	had := i.trusted.revoked != nil
	err := i.read()
	switch {
	case i.faults == nil:
	case err != nil:
		i.faults.warn("the new certificate is not used", fmt.Errorf("%w; the present one is valid "+
			"until %s", err, i.own.Leaf.NotAfter.Format(time.RFC3339)), "folder", i.dir)
	case had && i.trusted.revoked == nil:
		i.faults.warn("there is no list of revoked certificates any more", errListGone, "folder",
			i.dir)
	}
	return i.own, i.trusted
}

// Server returns the configuration of a server. Clients need a certificate of the same authority,
// and one of the roles in the same job; without roles, no more than that.
func (i *Identity) Server(roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert, // verified by VerifyConnection
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			own, _ := i.newest()
			return own, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			if err := i.verify(s); err != nil || len(roles) == 0 {
				return err
			}
			return i.admit(s.PeerCertificates[0], roles)
		},
	}
}

// Client returns the configuration of a client for connections that begin soon: it has the present
// authority. serverName is the server's name; empty means the name or IP address in the address,
// which the server's certificate must have. It must have one of the roles in the same job, too, if
// there are any. With neither, the server is etcd, whose certificate must be of no job's process.
func (i *Identity) Client(serverName string, roles ...Role) *tls.Config {
	_, trusted := i.newest()
	return &tls.Config{
		VerifyConnection: func(s tls.ConnectionState) error {
			shown := s.PeerCertificates[0]
			if err := trusted.checkRevoked(s.PeerCertificates); err != nil {
				return i.explain(shown, err)
			}
			switch named := Processes(shown); {
			case len(roles) > 0:
				return i.admit(shown, roles)
			case serverName == "" && len(named) > 0:
				return fmt.Errorf("its certificate (%s) is for %v, and not for etcd",
					shown.Subject, named)
			}
			return nil
		},
		MinVersion: tls.VersionTLS13,
		ServerName: serverName,
		RootCAs:    trusted.authorities,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			own, _ := i.newest()
			return own, nil
		},
	}
}

// verify checks a client's certificates against the authority.
func (i *Identity) verify(s tls.ConnectionState) error {
	_, trusted := i.newest()
	if len(s.PeerCertificates) == 0 {
		return errors.New("the other end shows no certificate")
	}
	err := trusted.check(s.PeerCertificates, x509.ExtKeyUsageClientAuth)
	return i.explain(s.PeerCertificates[0], err)
}

// explain says what is wrong with the other end's certificate, and what to do.
func (i *Identity) explain(leaf *x509.Certificate, err error) error {
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

// chain parses the certificates that X509KeyPair has accepted, and skips others.
func chain(der [][]byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for _, d := range der {
		if c, err := x509.ParseCertificate(d); err == nil {
			certs = append(certs, c)
		}
	}
	return certs
}
