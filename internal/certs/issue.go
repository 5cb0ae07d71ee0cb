package certs

import (
	"cmp"
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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// AuthorityKeyFile is an authority's private key beside its certificate. It stays on the machine
// that issues certificates.
const AuthorityKeyFile = "ca.key"

// How long certificates are valid. Clocks may differ by skew.
const (
	authorityLife = 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	skew          = 5 * time.Minute
)

// The job and the namespace of an Order that names none.
const (
	defaultJob       = "rondo"
	defaultNamespace = "default"
)

// Order says for whom Issue makes certificates.
type Order struct {
	Hosts     []string // names and IP addresses of etcd's members
	Namespace string   // of the jobs, in URIs; empty: that of the tree's jobs, or else "default"
	Jobs      []string // empty: those of the tree, or else "rondo"
}

// Issue writes a tree of folders, of the kind that Load and LoadEtcd read: jobs/JOB/ROLE for the
// processes of each job, named or there already, and etcd and peer for etcd's members. The tree has
// an authority with its key, and peer another one; Issue makes one that is not there. It returns
// the time until which the certificates are valid. Processes that read the folders take up the new
// ones without a restart.
func Issue(tree string, order Order, now time.Time) (until time.Time, err error) {
	if slices.Contains(order.Hosts, Name) {
		return until, fmt.Errorf("--hosts %s: the certificates of all jobs have this name: give "+
			"etcd's machines another one, or an IP address", Name)
	}
	if err := os.MkdirAll(filepath.Join(tree, jobsFolder), 0o700); err != nil {
		return until, err
	}
	by, err := openAuthority(tree, now)
	if err != nil {
		return until, err
	}
	processes, err := order.processes(tree)
	if err != nil {
		return until, err
	}
	until = now.Add(leafLife)
	if by.cert.NotAfter.Before(until) {
		until = by.cert.NotAfter
	}
	for _, p := range processes {
		leaf := leaf(p.User(), now, until)
		leaf.URIs = []*url.URL{p.uri()}
		if err := by.issue(jobFolder(tree, p.Job, p.Role), leaf); err != nil {
			return until, err
		}
	}
	err = by.issue(filepath.Join(tree, EtcdFolder), served(leaf(EtcdRoot, now, until), order.Hosts))
	if err != nil {
		return until, err
	}
	peers := filepath.Join(tree, PeerFolder)
	if by, err = openAuthority(peers, now); err != nil {
		return until, err
	}
	if by.cert.NotAfter.Before(until) {
		until = by.cert.NotAfter
	}
	return until, by.issue(peers, served(leaf("etcd peer", now, until), order.Hosts))
}

// processes returns the processes that get certificates: those of the order and of the tree, all in
// the namespace of the tree.
func (o Order) processes(tree string) (all []Process, err error) {
	there, err := os.ReadDir(filepath.Join(tree, jobsFolder))
	if err != nil {
		return nil, err
	}
	jobs := slices.Clone(o.Jobs)
	for _, entry := range there {
		if !entry.IsDir() {
			continue
		}
		old, err := namespaceOf(tree, entry.Name())
		switch {
		case err != nil:
			return nil, err
		case old != "" && o.Namespace != "" && old != o.Namespace:
			return nil, fmt.Errorf("job %s in %s is of namespace %s, and not %s: give another "+
				"--dir, or leave out --namespace", entry.Name(), tree, old, o.Namespace)
		case old != "":
			o.Namespace = old
		}
		if !slices.Contains(jobs, entry.Name()) {
			jobs = append(jobs, entry.Name())
		}
	}
	if len(jobs) == 0 {
		jobs = []string{defaultJob}
	}
	for _, job := range jobs {
		for _, role := range Roles() {
			p := Process{cmp.Or(o.Namespace, defaultNamespace), job, role}
			if err := p.validate(); err != nil {
				return nil, err
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// namespaceOf returns the namespace in the certificates of a tree's job; empty if there are none.
func namespaceOf(tree, job string) (string, error) {
	for _, role := range Roles() {
		file := filepath.Join(jobFolder(tree, job, role), CertFile)
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return "", fmt.Errorf("%s is no certificate: remove it", file)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", fmt.Errorf("%s: %w: remove it", file, err)
		}
		if named := Processes(cert); len(named) > 0 {
			return named[0].Namespace, nil
		}
	}
	return "", nil
}

// leaf returns a certificate without its names, but for Name, to be signed.
func leaf(common string, now, until time.Time) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: common}, NotBefore: now.Add(-skew),
		NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{Name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
}

// served adds the names and addresses under which a server is reached to its certificate.
func served(leaf *x509.Certificate, hosts []string) *x509.Certificate {
	leaf.DNSNames = append(leaf.DNSNames, "localhost")
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else if host != "" && !slices.Contains(leaf.DNSNames, host) {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	return leaf
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // of the authority's file, which may hold others
}

// issue signs a certificate and writes it to a folder, with its key and the authority.
func (a *authority) issue(dir string, leaf *x509.Certificate) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := sign(leaf, a.cert, own, a.key)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, TrustFile), a.pem); err != nil {
		return err
	}
	return writePair(dir, CertFile, der, KeyFile, own)
}

// openAuthority returns the folder's authority, and makes one if there is none.
func openAuthority(dir string, now time.Time) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	certFile, keyFile := filepath.Join(dir, TrustFile), filepath.Join(dir, AuthorityKeyFile)
	text, err := os.ReadFile(certFile)
	private, keyErr := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		return newAuthority(dir, now)
	}
	if err != nil || keyErr != nil {
		return nil, fmt.Errorf("%w: both files of an authority are needed, or none",
			errors.Join(err, keyErr))
	}
	certBlock, _ := pem.Decode(text)
	keyBlock, _ := pem.Decode(private)
	if certBlock == nil || keyBlock == nil {
		return nil, fmt.Errorf("%s and %s are not an authority's certificate and key", certFile,
			keyFile)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	switch {
	case !ok || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA:
		return nil, fmt.Errorf("%s is not the key of the first authority in %s", keyFile, certFile)
	case now.After(cert.NotAfter):
		return nil, fmt.Errorf("the authority in %s was valid until %s: remove it and %s, "+
			"and give all processes the new files", certFile, cert.NotAfter.Format(time.RFC3339),
			keyFile)
	}
	return &authority{cert: cert, key: key, pem: text}, nil
}

func newAuthority(dir string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "rondo authority"}, IsCA: true,
		BasicConstraintsValid: true, MaxPathLenZero: true, NotBefore: now.Add(-skew),
		NotAfter: now.Add(authorityLife), KeyUsage: x509.KeyUsageCertSign}
	der, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	if err := writePair(dir, TrustFile, der, AuthorityKeyFile, key); err != nil {
		return nil, err
	}
	return openAuthority(dir, now)
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
	err = writeFile(filepath.Join(dir, keyFile),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, certFile),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// writeFile replaces a file at once.
func writeFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
