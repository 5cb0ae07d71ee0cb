package etcdmember

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/auth"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"rondo/internal/certs"
)

// access makes etcd's users, and lets nobody else call. etcd takes the common name of a client's
// certificate as the user's name, and checks the user's permissions itself. A process of a job is
// the user JOB/ROLE, who is made when a member first sees its certificate; etcd's members are root.
type access struct {
	mu     sync.Mutex
	server *etcdserver.EtcdServer // nil: etcd does not run
	known  map[string]bool        // users that certainly exist
}

// open turns etcd's authorisation on, unless it is on, and then lets callers in.
func (a *access) open(ctx context.Context, server *etcdserver.EtcdServer) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if !server.AuthStore().IsAuthEnabled() {
		if err := makeUser(ctx, server, certs.EtcdRoot, certs.EtcdRoot); err != nil {
			return err
		}
		_, err := server.AuthEnable(asRoot(ctx), &etcdserverpb.AuthEnableRequest{})
		if err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server, a.known = server, map[string]bool{}
	return nil
}

func (a *access) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = nil
}

// check returns an error unless the caller is one of etcd's users, and makes a job's user if need
// be.
func (a *access) check(ctx context.Context) error {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "the caller is unknown")
	}
	shown, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(shown.State.PeerCertificates) == 0 {
		return status.Error(codes.Unauthenticated, "the caller shows no certificate")
	}
	cert := shown.State.PeerCertificates[0]
	if time.Now().After(cert.NotAfter) {
		return status.Errorf(codes.Unauthenticated, "the certificate (%s) was valid until %s: "+
			"renew it", cert.Subject, cert.NotAfter.Format(time.RFC3339))
	}
	name, named := cert.Subject.CommonName, certs.Processes(cert)
	if name == certs.EtcdRoot && len(named) == 0 { // before there are users, too
		return nil
	}
	n := slices.IndexFunc(named, func(p certs.Process) bool { return p.User() == name })
	if n < 0 {
		return status.Errorf(codes.PermissionDenied, "the certificate (%s) is for %v: its common "+
			"name must be JOB/ROLE of one of these (rondo certs makes such ones)", cert.Subject,
			named)
	}
	a.mu.Lock()
	server, known := a.server, a.known[name]
	a.mu.Unlock()
	switch {
	case server == nil:
		return status.Error(codes.Unavailable, "etcd has no users yet")
	case known:
		return nil
	}
	if err := makeProcess(ctx, server, named[n]); err != nil {
		return status.Errorf(codes.Unavailable, "making user %s: %v", name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[name] = true
	return nil
}

// makeProcess makes a process's user with its permissions.
func makeProcess(ctx context.Context, server *etcdserver.EtcdServer, p certs.Process) error {
	user := p.User()
	there, err := server.AuthStore().UserGet(&etcdserverpb.AuthUserGetRequest{Name: user})
	if err == nil && len(there.Roles) > 0 { // the last thing that is made
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err = again(func() error {
		_, err := server.RoleAdd(asRoot(ctx), &etcdserverpb.AuthRoleAddRequest{Name: user})
		return err
	})
	if err != nil && !errors.Is(err, auth.ErrRoleAlreadyExist) {
		return err
	}
	for _, allowed := range permissions(p) {
		err := again(func() error {
			_, err := server.RoleGrantPermission(asRoot(ctx),
				&etcdserverpb.AuthRoleGrantPermissionRequest{Name: user, Perm: allowed})
			return err
		})
		if err != nil {
			return err
		}
	}
	return makeUser(ctx, server, user, user)
}

// makeUser makes a user without a password, and gives them a role.
func makeUser(ctx context.Context, server *etcdserver.EtcdServer, name, role string) error {
	err := again(func() error {
		_, err := server.UserAdd(asRoot(ctx), &etcdserverpb.AuthUserAddRequest{Name: name,
			Options: &authpb.UserAddOptions{NoPassword: true}})
		return err
	})
	if err != nil && !errors.Is(err, auth.ErrUserAlreadyExist) {
		return err
	}
	return again(func() error {
		_, err := server.UserGrantRole(asRoot(ctx), &etcdserverpb.AuthUserGrantRoleRequest{
			User: name, Role: role})
		return err
	})
}

// revisions is how often a change is tried while other members change users too.
const revisions = 16

func again(change func() error) (err error) {
	for range revisions {
		if err = change(); !errors.Is(err, auth.ErrAuthOldRevision) {
			return err
		}
	}
	return err
}

// permissions returns what a process may do, all of it under /rondo/JOB/: see package etcdstore for
// the keys. All read; a worker writes its registration, its claims and the tip, a
// coordinator and a user all.
func permissions(p certs.Process) []*authpb.Permission {
	root := "/rondo/" + p.Job + "/"
	allow := func(prefix string, kind authpb.Permission_Type) *authpb.Permission {
		return &authpb.Permission{PermType: kind, Key: []byte(prefix),
			RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix))}
	}
	switch p.Role {
	case certs.Coordinator, certs.User:
		return []*authpb.Permission{allow(root, authpb.READWRITE)}
	case certs.Worker:
		return []*authpb.Permission{allow(root, authpb.READ), allow(root+"members/", authpb.WRITE),
			allow(root+"claims/", authpb.WRITE), allow(root+"tip", authpb.WRITE)}
	case certs.Observer:
		return []*authpb.Permission{allow(root, authpb.READ)}
	}
	panic(fmt.Sprintf("etcdmember: a process of role %q", p.Role))
}

// asRoot returns the context of a call by root within this process, as if by a certificate.
func asRoot(ctx context.Context) context.Context {
	root := &x509.Certificate{Subject: pkix.Name{CommonName: certs.EtcdRoot}}
	ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{root}}}}})
	return metadata.NewIncomingContext(ctx, metadata.MD{})
}

// guard has access check all calls of clients. A stream is checked with each message, so that it
// ends soon after the caller's certificate.
func (a *access) guard(c *embed.Config) {
	c.GRPCAdditionalServerOptions = append(c.GRPCAdditionalServerOptions,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any,
			_ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := a.check(ctx); err != nil {
				return nil, err
			}
			return handler(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream,
			_ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(service, checkedStream{stream, a})
		}))
}

type checkedStream struct {
	grpc.ServerStream
	access *access
}

func (s checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.access.check(s.Context())
}

func (s checkedStream) SendMsg(m any) error {
	if err := s.access.check(s.Context()); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}
