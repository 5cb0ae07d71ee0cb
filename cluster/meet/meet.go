// Package meet connects the processes of a job: it opens the store, waits for the spec in it, and
// finds the address under which others reach this process. It makes no decision about the job. It
// may import cluster with etcdstore and rpc, job/jobspec, proto, telemetry, internal/app and
// internal/certs.
package meet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/etcdstore"
	"rondo/cluster/rpc"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// Limits of the waits.
const (
	specWait    = 5 * time.Minute        // for the job to be submitted
	runWait     = 10 * time.Minute       // for a given run: all its processes start together
	specPause   = 500 * time.Millisecond // between two reads
	dialTimeout = 5 * time.Second
)

// Config is the configuration that all processes of a job share.
type Config struct {
	Etcd   []string // endpoints, host:port
	Job    string   // the job's name
	Listen string   // host:port; without a host: the address towards etcd; port 0: any
	Health string   // host:port of the health service; empty: none
	Host   string   // this process's host for ring order; empty: this machine's name
	Run    int64    // the job's run that this process serves; 0: any
	TLS    string   // folder of this process's certificate; empty: no TLS
	// Role is what the process does in the job, which its certificate must say.
	Role certs.Role
	// Insecure allows listeners without TLS that other machines reach.
	Insecure bool
	Log      *slog.Logger // nil: no log

	// Patience is how long to wait for etcd's first answer; 0: 10 s.
	Patience time.Duration
	// Dial opens connections to etcd and the coordinator, at their stored addresses host:port; nil:
	// over the network.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Validate returns an error that names the flag at fault.
func (c Config) Validate() error {
	if len(c.Etcd) == 0 {
		return errors.New("--etcd: no endpoints; give host:port,host:port")
	}
	for _, endpoint := range c.Etcd {
		scheme, hostPort, isURL := strings.Cut(endpoint, "://")
		if isURL && scheme == "http" && c.TLS != "" {
			return fmt.Errorf("--etcd %q is a URL without TLS, but --tls %s is set",
				endpoint, c.TLS)
		}
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
	for flag, address := range map[string]string{"listen": c.Listen, "health": c.Health} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return fmt.Errorf("--%s %q is not host:port: %w", flag, address, err)
		}
	}
	if c.Run < 0 {
		return fmt.Errorf("--run %d: a run's number is above zero; 0 is any run", c.Run)
	}
	return nil
}

// CheckListeners returns an error if a listener would be open to other machines without TLS, and
// --insecure does not allow that.
func (c Config) CheckListeners(ctx context.Context) error {
	if c.Health != "" {
		if err := c.checkListener("health", c.Health); err != nil {
			return err
		}
	}
	host, _, err := c.listens(ctx)
	if err != nil {
		return nil //nolint:nilerr // Open reports it, if it lasts
	}
	return c.checkListener("listen", host)
}

func (c Config) checkListener(flag, address string) error {
	return app.Usage(certs.CheckListener(flag, address, c.TLS != "" || c.Insecure))
}

// Store opens the job's part of etcd.
func (c Config) Store(ctx context.Context) (*etcdstore.Store, error) {
	identity, err := c.Identity()
	if err != nil {
		return nil, err
	}
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: c.Etcd, Job: c.Job, Log: c.Log,
		StartTimeout: c.Patience, DialOptions: c.dialing(identity, "")}) // the endpoint's name
	if err != nil && identity != nil && identity.Refused() != nil {
		err = fmt.Errorf("%w: %w", err, identity.Refused())
	}
	return store, err
}

// Client returns a client of the job's present leader. Its calls retry for patience; 0: 30 s.
func (c Config) Client(store cluster.Registry, patience time.Duration) (*rpc.Client, error) {
	identity, err := c.Identity()
	if err != nil {
		return nil, err
	}
	return rpc.NewClient(func(ctx context.Context) (string, error) {
		leader, err := store.Leader(ctx)
		return leader.Address, err
	}, rpc.ClientConfig{Patience: patience, Log: c.Log,
		Dial: c.dialing(identity, certs.Name, certs.Coordinator)})
}

// Identity returns the process's certificate; nil without --tls. A missing folder is a usage error.
// A folder that is incomplete is not, because its files may still be written.
func (c Config) Identity() (*certs.Identity, error) {
	if c.TLS == "" {
		return nil, nil
	}
	identity, err := certs.Load(c.TLS, c.Job, c.Role)
	if _, missing := os.Stat(c.TLS); errors.Is(missing, fs.ErrNotExist) {
		return nil, app.Usage(err)
	}
	return identity, err
}

// dialing returns the options for connections to servers of this name, empty: the name in their
// address, and with one of the roles.
func (c Config) dialing(
	identity *certs.Identity, serverName string, roles ...certs.Role,
) (options []grpc.DialOption) {
	if identity != nil {
		options = append(options,
			grpc.WithTransportCredentials(identity.ClientCredentials(serverName, c.Log, roles...)))
	}
	if c.Dial != nil {
		options = append(options, grpc.WithContextDialer(c.Dial))
	}
	return options
}

// Spec returns the validated spec of the job. It waits for the job, or for this process's run of
// it, to be submitted, and retries while etcd does not answer.
func (c Config) Spec(ctx context.Context, store cluster.Registry) (*rondov1.JobSpec, error) {
	patience := specWait
	if c.Run > 0 {
		patience = runWait
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := time.NewTicker(specPause)
	defer pause.Stop()
	var reason error // last one before the timeout
	for first := true; ; first = false {
		stored, err := store.Spec(limited)
		if err == nil && jobspec.RunOf(stored) >= c.Run {
			return Decode(stored)
		}
		if err == nil {
			err = fmt.Errorf("job %s is at run %d; this process waits for run %d, which its "+
				"coordinator submits when the older one has ended", c.Job, jobspec.RunOf(stored),
				c.Run)
		}
		if reason == nil || limited.Err() == nil {
			reason = err
		}
		if first && c.Log != nil {
			c.Log.Warn("waiting for the job to be submitted", "job", c.Job, "for", patience,
				"reason", reason)
		}
		select {
		case <-pause.C:
		case <-limited.Done():
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("waited %v for the job to be submitted: %w", patience, reason)
		}
	}
}

// Decode decodes and validates a stored spec.
func Decode(stored []byte) (*rondov1.JobSpec, error) {
	spec := &rondov1.JobSpec{}
	if err := proto.Unmarshal(stored, spec); err != nil {
		return nil, fmt.Errorf("the job's spec in etcd cannot be read: %w", err)
	}
	if err := jobspec.Validate(spec); err != nil {
		return nil, fmt.Errorf("the job's spec in etcd: %w", err)
	}
	return spec, nil
}

// Open opens the process's port. Without a host in --listen, others know it by the address from
// which it reaches etcd. A chosen port is then also open on this machine's other addresses, such as
// the loopback of a pod, where forwarded ports arrive.
func (c Config) Open(ctx context.Context) (net.Listener, error) {
	address, known, err := c.listens(ctx)
	if err == nil {
		err = c.checkListener("listen", address)
	}
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if host, _, _ := net.SplitHostPort(address); host == known {
		return listener, nil
	}
	public := *listener.Addr().(*net.TCPAddr)
	public.IP = net.ParseIP(known)
	return knownListener{listener, &public}, nil
}

// listens returns the address to listen on, and the host that others know.
func (c Config) listens(ctx context.Context) (address, known string, err error) {
	host, port := "", "0"
	if c.Listen != "" {
		host, port, _ = net.SplitHostPort(c.Listen) // Validate has checked it
	}
	if known = host; host == "" {
		if known, err = c.outwardHost(ctx); err != nil {
			return "", "", err
		}
		if port == "0" {
			host = known
		}
	}
	return net.JoinHostPort(host, port), known, nil
}

// knownListener listens on all addresses of a machine, and reports one of them.
type knownListener struct {
	net.Listener
	known net.Addr
}

func (l knownListener) Addr() net.Addr { return l.known }

// outwardHost returns this machine's address towards etcd: towards the first endpoint whose name
// resolves. It sends no packet.
func (c Config) outwardHost(ctx context.Context) (string, error) {
	if len(c.Etcd) == 0 {
		return "", errors.New("--etcd: no endpoints; give host:port,host:port")
	}
	var errs []error
	dialer := net.Dialer{Timeout: dialTimeout}
	for _, endpoint := range c.Etcd {
		if _, address, isURL := strings.Cut(endpoint, "://"); isURL {
			endpoint = address
		}
		conn, err := dialer.DialContext(ctx, "udp", endpoint)
		if err != nil {
			errs = append(errs, fmt.Errorf("--etcd %s: %w", endpoint, err))
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		_ = conn.Close()
		return host, err
	}
	return "", fmt.Errorf("finding this machine's address on the way to etcd: %w",
		errors.Join(errs...))
}

// HostName returns this machine's name, for people.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown-host"
	}
	return name
}

// The version of this build: a release, and the protocol between workers and coordinators.
const (
	release  = "0.2.0"
	protocol = 4
)

// Version names the build. All processes of a job must have the same one, because replicas compute
// equal bits only with equal code.
func Version() string { return fmt.Sprintf("%s, protocol %d", release, protocol) }
