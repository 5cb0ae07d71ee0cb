package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/internal/certs"
	"rondo/internal/certs/certstest"
	"rondo/internal/port"
	rondov1 "rondo/proto/rondo/v1"
)

// secured is an etcd and a job that trains, by the commands of the README, with TLS.
type secured struct {
	t     *testing.T
	job   string
	certs string // folder of rondo certs
	order certs.Order
	etcd  *port.Port // for clients
	peer  *port.Port // for members
	where meet.Config
	*trial
}

// secure starts an etcd of one member, which listens on all addresses, and a job of two workers.
func secure(t *testing.T, job, folder string, allow allowance, flags ...string) *secured {
	t.Helper()
	s := certify(t, job, folder)
	s.start(allow, flags...)
	return s
}

// certify makes certificates for an etcd and a job.
func certify(t *testing.T, job, folder string) *secured {
	t.Helper()
	s := &secured{t: t, job: job, certs: folder, etcd: port.ForTest(t), peer: port.ForTest(t),
		order: certs.Order{Hosts: []string{"127.0.0.1"}, Namespace: "default",
			Jobs: []string{job, "other"}}}
	code, _, stderr := run(t, "certs", "--dir", folder, "--hosts", "127.0.0.1", "--job",
		job+",other")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	return s
}

// start starts the etcd and the job.
func (s *secured) start(allow allowance, flags ...string) {
	s.t.Helper()
	launch(s.t, nil, environment(s.t), filepath.Join(binaries, "rondo"), "etcd", "--name", "a",
		"--peers", "a="+s.peer.Address(), "--data", s.t.TempDir(), "--listen", "0.0.0.0",
		"--client-port", fmt.Sprint(s.etcd.Number()), "--health", port.ForTest(s.t).Address(),
		"--tls", s.certs)
	s.where = meet.Config{Etcd: []string{s.etcd.Address()}, Job: s.job, TLS: s.certs,
		Role: certs.User, Patience: eventTimeout}
	s.trial = try(s.t, allow, slices.Concat(s.place(), []string{"--workers", "2", "--link", "tcp",
		"--steps", "100000"}, flags)...)
}

// place are the flags that say where the job is.
func (s *secured) place() []string {
	return []string{"--etcd", s.etcd.Address(), "--tls", s.certs, "--job", s.job}
}

func (s *secured) view() cluster.View {
	s.t.Helper()
	store, err := s.where.Store(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	view, err := store.View(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return view
}

// shows returns the configuration of a client that believes every server, and shows the certificate
// in a folder, or none.
func shows(t *testing.T, folder string) *tls.Config {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if folder == "" {
		return config
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, certs.CertFile),
		filepath.Join(folder, certs.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &pair, nil // whatever authorities the server names
	}
	return config
}

const strangerPatience = 20 * time.Second

// door is a server that strangers call.
type door struct {
	name string
	call func(ctx context.Context, as *tls.Config) error // nil: the caller is served
	// Folders within a tree, of who is served, and of two who are not.
	good, otherJob, wrongRole string
	unnamed                   func(ctx context.Context) error // an honest call to an impostor
}

// TestStrangers: nobody is served without a certificate of the right authority, time, job and role;
// and nobody believes a server whose certificate lacks its address or name.
func TestStrangers(t *testing.T) {
	t.Parallel()
	tree, expired, foreign := t.TempDir(), t.TempDir(), t.TempDir()
	order := certs.Order{Hosts: []string{"127.0.0.1"}, Namespace: "default",
		Jobs: []string{"ident", "other"}}
	// The same authorities, and leaves that have expired yesterday.
	if _, err := certs.Issue(expired, order, time.Now().Add(-91*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(tree, "certs"), os.DirFS(expired)); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.Issue(foreign, order, time.Now()); err != nil {
		t.Fatal(err)
	}
	s := secure(t, "ident", filepath.Join(tree, "certs"), allowance{}, "--inject", paced)
	s.untilStep(3)
	for _, d := range s.doors() {
		for row, folder := range map[string]string{
			"no certificate": "",
			"foreign CA":     filepath.Join(foreign, d.good),
			"expired":        filepath.Join(expired, d.good),
			"other job":      filepath.Join(s.certs, d.otherJob),
			"wrong role":     filepath.Join(s.certs, d.wrongRole),
			"good":           filepath.Join(s.certs, d.good),
		} {
			ctx, cancel := context.WithTimeout(t.Context(), strangerPatience)
			err := d.call(ctx, shows(t, folder))
			if (err == nil) != (row == "good") || ctx.Err() != nil {
				t.Errorf("%s, %s: %v, %v", d.name, row, err, ctx.Err())
			}
			t.Logf("%s, %s: %v", d.name, row, err)
			cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), strangerPatience)
		err := d.unnamed(ctx)
		if err == nil || !strings.Contains(err.Error(), "certificate") || ctx.Err() != nil {
			t.Errorf("%s, IP without SAN: %v", d.name, err)
		}
		t.Logf("%s, IP without SAN: %v", d.name, err)
		cancel()
	}
	s.people()
	if rings := named(s.stop(), "generation"); len(rings) != 1 {
		t.Errorf("strangers broke the ring: %v", rings)
	}
}

// people watch and scale the job, by the commands of the README.
func (s *secured) people() {
	s.t.Helper()
	for _, words := range [][]string{{"workers"}, {"scale", "2"}} {
		if code, _, stderr := run(s.t, append(words, s.place()...)...); code != 0 {
			s.t.Errorf("rondo %v: exit code %d: %s", words, code, stderr)
		}
	}
	page := port.ForTest(s.t).Address()
	launch(s.t, nil, environment(s.t), append([]string{filepath.Join(binaries, "rondo"), "observe",
		"--listen", page}, s.place()...)...)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(s.t.Context(), eventTimeout)
	defer cancel()
	for !strings.Contains(get(ctx, "http://"+page+"/metrics"), "\nrondo_step{") {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("rondo observe shows no step within %v", eventTimeout)
		}
	}
}

// get returns a page, or nothing.
func get(ctx context.Context, address string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return ""
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

func (s *secured) doors() []door {
	folder := func(job string, role certs.Role) string {
		return filepath.Join("jobs", job, string(role))
	}
	view := s.view()
	worker, other := folder(s.job, certs.Worker), folder("other", certs.Worker)
	return []door{
		{name: "etcd client", call: s.writeClaim, good: worker, otherJob: other,
			wrongRole: folder(s.job, certs.Observer), unnamed: func(ctx context.Context) error {
				where := s.where
				where.Etcd = []string{fmt.Sprintf("127.0.0.2:%d", s.etcd.Number())}
				where.Patience = 3 * time.Second
				store, err := where.Store(ctx)
				if err == nil {
					_ = store.Close()
				}
				return err
			}},
		{name: "etcd peer", good: certs.PeerFolder, otherJob: other, wrongRole: certs.EtcdFolder,
			call: func(ctx context.Context, as *tls.Config) error {
				return members(ctx, s.peer.Address(), as)
			},
			unnamed: func(ctx context.Context) error {
				peer, err := certs.LoadEtcd(s.certs, certs.PeerFolder)
				if err != nil {
					s.t.Fatal(err)
				}
				return members(ctx, fmt.Sprintf("127.0.0.2:%d", s.peer.Number()), peer.Client(""))
			}},
		{name: "ring", good: worker, otherJob: other, wrongRole: folder(s.job, certs.Coordinator),
			call: func(ctx context.Context, as *tls.Config) error {
				return link(ctx, view.Members[0].Address, credentials.NewTLS(as))
			},
			unnamed: func(ctx context.Context) error {
				return link(ctx, s.impostor(certs.Worker), s.credentials(certs.Worker))
			}},
		{name: "coordinator", good: worker, otherJob: other,
			wrongRole: folder(s.job, certs.Observer),
			call: func(ctx context.Context, as *tls.Config) error {
				return report(ctx, view.Leader.Address, credentials.NewTLS(as))
			},
			unnamed: func(ctx context.Context) error {
				return report(ctx, s.impostor(certs.Coordinator), s.credentials(certs.Coordinator))
			}},
	}
}

// writeClaim writes a key of the job that workers write.
func (s *secured) writeClaim(ctx context.Context, as *tls.Config) error {
	return call(s.etcd.Address(), credentials.NewTLS(as), func(conn *grpc.ClientConn) error {
		_, err := etcdserverpb.NewKVClient(conn).Put(ctx, &etcdserverpb.PutRequest{
			Key: []byte("/rondo/" + s.job + "/claims/stranger")})
		return err
	})
}

// members asks a member for the list of members, as another member does.
func members(ctx context.Context, address string, as *tls.Config) error {
	transport := &http.Transport{TLSClientConfig: as, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"https://"+address+"/members", nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	_, err = io.ReadAll(answer.Body)
	return err
}

// link opens a stream to a worker, which hears it as far as it refuses a stranger without a seat.
func link(ctx context.Context, address string, as credentials.TransportCredentials) error {
	return call(address, as, func(conn *grpc.ClientConn) error {
		stream, err := rondov1.NewRingClient(conn).Link(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) == codes.InvalidArgument &&
			strings.HasPrefix(status.Convert(err).Message(), "refused: ") {
			return nil // by the ring, and not by TLS
		}
		return err
	})
}

// report opens a worker's report to a leader.
func report(ctx context.Context, address string, as credentials.TransportCredentials) error {
	return call(address, as, func(conn *grpc.ClientConn) error {
		stream, err := rondov1.NewCoordinatorClient(conn).Report(ctx)
		if err != nil {
			return err
		}
		_ = stream.Send(&rondov1.Record{Source: "stranger"}) // Recv says why it fails
		if _, err := stream.Recv(); err != nil {
			return err
		}
		return stream.CloseSend()
	})
}

func call(address string, as credentials.TransportCredentials,
	do func(*grpc.ClientConn) error) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(as))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return do(conn)
}

// credentials are those of an honest worker that calls a server of a role.
func (s *secured) credentials(role certs.Role) credentials.TransportCredentials {
	identity, err := certs.Load(s.certs, s.job, certs.Worker)
	if err != nil {
		s.t.Fatal(err)
	}
	return identity.ClientCredentials(certs.Name, nil, role)
}

// impostor starts a server with a certificate for the job and the role, but for another address and
// no name.
func (s *secured) impostor(role certs.Role) (address string) {
	s.t.Helper()
	authority := certstest.Open(s.t, s.certs)
	authority.Names = []certs.Process{{Namespace: s.order.Namespace, Job: s.job, Role: role}}
	folder := authority.IssueFor(s.t.TempDir(), time.Now().Add(time.Hour),
		[]net.IP{net.IPv4(127, 0, 0, 9)})
	identity, err := certs.Load(folder, s.job, role)
	if err != nil {
		s.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(identity.ServerCredentials(nil)))
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(server.Stop)
	return listener.Addr().String()
}
