package certs

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// AuthorityKeyFile is an authority's private key beside its certificate. It stays on the machine
// that issues certificates.
const AuthorityKeyFile = "ca.key"

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
	Revoke    []string // files of certificates by the tree's authorities; see RevokedFile
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
	peers := filepath.Join(tree, PeerFolder)
	byPeers, err := openAuthority(peers, now)
	if err != nil {
		return until, err
	}
	processes, err := order.processes(tree)
	if err != nil {
		return until, err
	}
	if err := order.revoke(now, map[string]*Authority{tree: by, peers: byPeers}); err != nil {
		return until, err
	}
	until = by.until(now)
	for _, p := range processes {
		leaf := Leaf{Common: p.User(), Hosts: []string{Name}, URIs: []*url.URL{p.uri()}}
		if err := by.issue(jobFolder(tree, p.Job, p.Role), leaf, now); err != nil {
			return until, err
		}
	}
	hosts := append([]string{Name, "localhost", "127.0.0.1", "::1"}, order.Hosts...)
	err = by.issue(filepath.Join(tree, EtcdFolder), Leaf{Common: EtcdRoot, Hosts: hosts}, now)
	if err != nil {
		return until, err
	}
	if sooner := byPeers.until(now); sooner.Before(until) {
		until = sooner
	}
	return until, byPeers.issue(peers, Leaf{Common: "etcd peer", Hosts: hosts}, now)
}

// revoke adds each certificate to the list in the folder of its authority.
func (o Order) revoke(now time.Time, by map[string]*Authority) error {
	for _, file := range o.Revoke {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		cert, err := parse(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		known := false
		for folder, a := range by {
			if cert.CheckSignatureFrom(a.cert) != nil {
				continue
			}
			known = true
			if err = a.revoke(cert, now); err == nil {
				err = writeFile(filepath.Join(folder, RevokedFile), a.list)
			}
			if err != nil {
				return fmt.Errorf("%s cannot be revoked: %w", file, err)
			}
		}
		if !known {
			return fmt.Errorf("%s was signed by no authority whose key is in --dir: give --revoke "+
				"with the --dir of the authority that signed it", file)
		}
	}
	return nil
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

// issue writes a new certificate to a folder, with its key, the authority and its list.
func (a *Authority) issue(dir string, leaf Leaf, now time.Time) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	pair, err := a.Sign(leaf, now)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, TrustFile), a.pem); err != nil {
		return err
	}
	if err := pair.write(dir, CertFile, KeyFile); err != nil || a.list == nil {
		return err
	}
	return writeFile(filepath.Join(dir, RevokedFile), a.list)
}

// openAuthority returns the folder's authority, and makes one if there is none.
func openAuthority(dir string, now time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	certFile, keyFile := filepath.Join(dir, TrustFile), filepath.Join(dir, AuthorityKeyFile)
	text, err := os.ReadFile(certFile)
	private, keyErr := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist) {
		pair, err := NewAuthority(now)
		if err != nil {
			return nil, err
		}
		if err := pair.write(dir, TrustFile, AuthorityKeyFile); err != nil {
			return nil, err
		}
		return ParseAuthority(pair, now)
	}
	if err != nil || keyErr != nil {
		return nil, fmt.Errorf("%w: both files of an authority are needed, or none",
			errors.Join(err, keyErr))
	}
	a, err := ParseAuthority(Pair{Cert: text, Key: private}, now)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	a.list, err = os.ReadFile(filepath.Join(dir, RevokedFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return a, nil
}

// write writes a certificate and its key. A process that reads between the two keeps what it has:
// the two do not fit.
func (p Pair) write(dir, certFile, keyFile string) error {
	if err := writeFile(filepath.Join(dir, keyFile), p.Key); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, certFile), p.Cert)
}

// writeFile replaces a file at once.
func writeFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
