// Package local runs a job on one machine: an embedded etcd, a coordinator, worker processes, and a
// watch over them. It links the etcd server, so the lean commands do not import it. It does not
// train, and knows nothing of Kubernetes. It may import coordinator, cluster and its adapters, job,
// proto and telemetry.
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"rondo/internal/flock"
)

// etcdStartTimeout bounds the start of the embedded etcd.
const etcdStartTimeout = 30 * time.Second

// Etcd is an embedded single-member etcd that listens on loopback.
type Etcd struct {
	server *embed.Etcd
}

// StartEtcd starts etcd with its data in dir, on free ports of 127.0.0.1.
func StartEtcd(ctx context.Context, dir string) (*Etcd, error) {
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "panic"
	config.UnsafeNoFsync = true // the data is worthless after this run of the processes
	// A web page that a person has open must not reach etcd through the browser.
	config.EnableGRPCGateway = false
	config.HostWhitelist = map[string]struct{}{"127.0.0.1": {}}
	config.CORS = config.HostWhitelist // no page's origin is like that; none at all would be any
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = anyPort, anyPort
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd in %s: %w", dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, etcdStartTimeout)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
		return &Etcd{server: server}, nil
	case err = <-server.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	server.Close()
	return nil, fmt.Errorf("embedded etcd in %s did not become ready: %w", dir, err)
}

// Endpoint returns the host:port for clients.
func (e *Etcd) Endpoint() string { return e.server.Clients[0].Addr().String() }

// etcdFolder begins the name of a run's folder with etcd's data.
const etcdFolder = "rondo-etcd-"

// temporaryEtcd starts an etcd; stop ends it and deletes its data. First it deletes the folders of
// killed processes. A folder is locked as long as its process lives.
func temporaryEtcd(ctx context.Context) (etcd *Etcd, stop func(), err error) {
	sweep(os.TempDir())
	dir, lock, err := lockedFolder()
	if err != nil {
		return nil, nil, fmt.Errorf("embedded etcd: %w", err)
	}
	remove := func() {
		_ = os.RemoveAll(dir) // the next sweep removes a remainder
		_ = lock.Close()
	}
	if err := enoughSpace(dir); err != nil {
		remove()
		return nil, nil, err
	}
	if etcd, err = StartEtcd(ctx, filepath.Join(dir, "data")); err != nil {
		remove()
		return nil, nil, err
	}
	return etcd, func() {
		etcd.Close()
		remove()
	}, nil
}

// etcdBytes is the disk space that an etcd needs for its log and data, with a margin. Without it,
// etcd panics in one of its own goroutines.
const etcdBytes = 192 << 20

func enoughSpace(dir string) error {
	free, err := freeBytes(dir)
	if err != nil {
		return fmt.Errorf("embedded etcd: %s: %w", dir, err)
	}
	if free < etcdBytes {
		return fmt.Errorf("the embedded etcd needs %d MiB in %s, and %d are free: free some, set "+
			"TMPDIR, or give --etcd", etcdBytes>>20, filepath.Dir(dir), free>>20)
	}
	return nil
}

// folderTries bounds how often lockedFolder makes a folder.
const folderTries = 100

// lockedFolder makes a folder and locks it. Between the two, the sweep of another process may take
// the folder for that of a dead process and remove it: then lockedFolder makes another.
func lockedFolder() (dir string, lock *os.File, err error) {
	for range folderTries {
		if dir, err = os.MkdirTemp("", etcdFolder); err != nil {
			return "", nil, err
		}
		if lock, err = lockFolder(dir); err == nil {
			if isAt(lock, filepath.Join(dir, lockFile)) {
				return dir, lock, nil
			}
			err = errors.Join(fmt.Errorf("another process removed %s", dir), lock.Close())
		} else if !errors.Is(err, flock.ErrHeld) && !errors.Is(err, fs.ErrNotExist) {
			return "", nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	return "", nil, err
}

// isAt reports whether the file is still the one at path.
func isAt(file *os.File, path string) bool {
	own, err := file.Stat()
	if err != nil {
		return false
	}
	found, err := os.Stat(path)
	return err == nil && os.SameFile(own, found)
}

// lockFile is the name of the lock in a run's folder.
const lockFile = "lock"

// lockFolder locks a run's folder, or fails at once.
func lockFolder(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Try(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// sweep removes the folders of dead processes. It ignores folders without a lock file, which may be
// just being created.
func sweep(temporary string) {
	dirs, err := filepath.Glob(filepath.Join(temporary, etcdFolder+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, lockFile)); err != nil {
			continue
		}
		if lock, err := lockFolder(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// Close stops the server.
func (e *Etcd) Close() { e.server.Close() }
