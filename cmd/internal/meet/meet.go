// Package meet is how the processes of a job find each other: the store, the spec in it, and the
// address under which a process of this machine is reached.
package meet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/internal/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Limits of the waits.
const (
	specWait    = 5 * time.Minute        // for the job to be submitted
	specPause   = 500 * time.Millisecond // between looks
	dialTimeout = 5 * time.Second
)

// Config says where a process of a job stands.
type Config struct {
	Etcd   []string     // endpoints, host:port
	Job    string       // the job's name
	Listen string       // host:port; an empty host is the address that others reach; port 0 is any
	Log    *slog.Logger // nil: nothing
}

// Validate returns an error that names the flag at fault.
func (c Config) Validate() error {
	if len(c.Etcd) == 0 {
		return errors.New("--etcd: no endpoints; give host:port,host:port")
	}
	for _, endpoint := range c.Etcd {
		_, hostPort, isURL := strings.Cut(endpoint, "://")
		if !isURL {
			hostPort = endpoint
		}
		if host, port, err := net.SplitHostPort(hostPort); err != nil || host == "" || port == "" {
			return fmt.Errorf("--etcd %q is not host:port", endpoint)
		}
	}
	if c.Job == "" || strings.Contains(c.Job, "/") {
		return fmt.Errorf("--job %q: a name must not be empty or contain a slash", c.Job)
	}
	if _, _, err := net.SplitHostPort(c.Listen); c.Listen != "" && err != nil {
		return fmt.Errorf("--listen %q is not host:port: %w", c.Listen, err)
	}
	return nil
}

// Store opens the job's part of etcd.
func (c Config) Store(ctx context.Context) (*etcdstore.Store, error) {
	return etcdstore.Open(ctx, etcdstore.Config{Endpoints: c.Etcd, Job: c.Job, Log: c.Log})
}

// Client speaks to whoever leads the job at the moment, and tries for as long as patience, or 30 s
// if that is 0; log hears of what is tried again.
func Client(store cluster.Registry, patience time.Duration, log *slog.Logger) (
	*rpc.Client, error) {
	return rpc.NewClient(func(ctx context.Context) (string, error) {
		leader, err := store.Leader(ctx)
		return leader.Address, err
	}, rpc.ClientConfig{Patience: patience, Log: log})
}

// Spec returns the job's spec, validated; it waits a while for the job to be submitted, and for an
// etcd that does not answer for a moment.
func (c Config) Spec(ctx context.Context, store cluster.Registry) (*rondov1.JobSpec, error) {
	limited, cancel := context.WithTimeout(ctx, specWait)
	defer cancel()
	pause := time.NewTicker(specPause)
	defer pause.Stop()
	for first := true; ; first = false {
		stored, err := store.Spec(limited)
		if err == nil {
			return decode(stored)
		}
		if first && c.Log != nil {
			c.Log.Warn("waiting for the job to be submitted", "job", c.Job, "for", specWait)
		}
		select {
		case <-pause.C:
		case <-limited.Done():
			return nil, fmt.Errorf("waiting for the job to be submitted: %w", err)
		}
	}
}

func decode(stored []byte) (*rondov1.JobSpec, error) {
	spec := &rondov1.JobSpec{}
	if err := proto.Unmarshal(stored, spec); err != nil {
		return nil, fmt.Errorf("the job's spec in etcd cannot be read: %w", err)
	}
	if err := jobspec.Validate(spec); err != nil {
		return nil, fmt.Errorf("the job's spec in etcd: %w", err)
	}
	return spec, nil
}

// Open opens the process's port, on the address from which it reaches etcd unless one is given.
func (c Config) Open(ctx context.Context) (net.Listener, error) {
	host, port := "", "0"
	if c.Listen != "" {
		host, port, _ = net.SplitHostPort(c.Listen) // Validate has seen it
	}
	if host == "" {
		var err error
		if host, err = c.outwardHost(ctx); err != nil {
			return nil, err
		}
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return listener, nil
}

// outwardHost is this machine's address on the way to etcd. No packet is sent.
func (c Config) outwardHost(ctx context.Context) (string, error) {
	if len(c.Etcd) == 0 {
		return "", errors.New("--etcd: no endpoints; give host:port,host:port")
	}
	endpoint := c.Etcd[0]
	if strings.Contains(endpoint, "://") {
		parsed, err := url.Parse(endpoint)
		if err != nil {
			return "", fmt.Errorf("--etcd %s: %w", endpoint, err)
		}
		endpoint = parsed.Host
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "udp", endpoint)
	if err != nil {
		return "", fmt.Errorf("--etcd %s: finding this machine's address on the way there: %w",
			endpoint, err)
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}

// HostName is this machine's name, for people and for ring order.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown-host"
	}
	return name
}

// The version of this build: a release, and the number of what workers and coordinators of one
// job say to each other.
const (
	release  = "0.2.0"
	protocol = 1
)

// Version names the build, as all processes of a job must have it in common: replicas compute the
// same bits only where they run the same code.
func Version() string { return fmt.Sprintf("%s, protocol %d", release, protocol) }
