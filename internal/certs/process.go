package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Role is what a process does in its job.
type Role string

// The roles. A process has one; a certificate may name several.
const (
	Worker      Role = "worker"      // trains
	Coordinator Role = "coordinator" // leads the job, or stands by
	Observer    Role = "observer"    // watches
	User        Role = "user"        // submits, stops and scales, and watches
)

// Roles returns all roles.
func Roles() []Role { return []Role{Worker, Coordinator, Observer, User} }

// scheme is that of a process's URI.
const scheme = "rondo"

// Process is what a certificate says of its holder by a URI, rondo://NAMESPACE/JOB/ROLE.
type Process struct {
	Namespace, Job string
	Role           Role
}

// String returns the URI.
func (p Process) String() string { return p.uri().String() }

func (p Process) uri() *url.URL {
	return &url.URL{Scheme: scheme, Host: p.Namespace, Path: "/" + p.Job + "/" + string(p.Role)}
}

// User returns the process's user of etcd, which is the common name of its certificate.
func (p Process) User() string { return p.Job + "/" + string(p.Role) }

// letters are those of a namespace, which is a URI's host, and of a job.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// validate returns an error if no URI can say what p is.
func (p Process) validate() error {
	for what, name := range map[string]string{"namespace": p.Namespace, "job": p.Job} {
		if strings.Trim(name, ".") == "" || strings.Trim(name, letters) != "" {
			return fmt.Errorf("%s %q: a name in a certificate has letters a-z and A-Z, digits "+
				"and ._- only, and not only dots", what, name)
		}
	}
	if slices.Contains(strings.Split(p.Namespace, "."), "") {
		return fmt.Errorf("namespace %q: a dot must stand between other letters", p.Namespace)
	}
	return nil
}

// Processes returns what a certificate says of its holder. URIs of other kinds are skipped.
func Processes(cert *x509.Certificate) []Process {
	var all []Process
	for _, uri := range cert.URIs {
		job, role, found := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
		p := Process{Namespace: uri.Host, Job: job, Role: Role(role)}
		if uri.Scheme == scheme && found && slices.Contains(Roles(), p.Role) &&
			p.validate() == nil {
			all = append(all, p)
		}
	}
	return all
}

// admit returns an error unless a certificate is of a process of the same job, with one of the
// roles.
func (i *Identity) admit(cert *x509.Certificate, roles []Role) error {
	own := i.process()
	all := Processes(cert)
	for _, p := range all {
		if p.Namespace == own.Namespace && p.Job == own.Job && slices.Contains(roles, p.Role) {
			return nil
		}
	}
	wanted := own
	var want []string
	for _, wanted.Role = range roles {
		want = append(want, wanted.String())
	}
	return fmt.Errorf("its certificate (%s) is for %v, and not for %s", cert.Subject, all,
		strings.Join(want, " or "))
}

// Authorize returns the options of a gRPC server with ServerCredentials: a method is for callers
// with one of its roles in this process's job. Other methods are for nobody.
func (i *Identity) Authorize(may map[string][]Role) []grpc.ServerOption {
	allow := func(ctx context.Context, method string) error {
		from, ok := peer.FromContext(ctx)
		if !ok {
			return status.Error(codes.Unauthenticated, "the caller is unknown")
		}
		shown, ok := from.AuthInfo.(credentials.TLSInfo)
		if !ok || len(shown.State.PeerCertificates) == 0 {
			return status.Error(codes.Unauthenticated, "the caller shows no certificate")
		}
		if err := i.admit(shown.State.PeerCertificates[0], may[method]); err != nil {
			return status.Errorf(codes.PermissionDenied, "%s refuses the caller: %v", method, err)
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any,
			info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := allow(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handler(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(service any, stream grpc.ServerStream,
			info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := allow(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handler(service, stream)
		}),
	}
}
