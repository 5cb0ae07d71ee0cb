// Package health answers a platform's probes with the gRPC health protocol. It asks the process at
// each probe and keeps no state. It may import gRPC, and nothing of this module.
package health

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// The services of the protocol. The whole process, "", is the same as Readiness.
const (
	Startup   = "startup"   // the process has started; a platform sends no other probe before that
	Readiness = "readiness" // the process does its work
	Liveness  = "liveness"  // the process is not stuck, so a restart would not help
)

// Limits of the server. A probe is one small message.
const (
	messageBytes   = 1 << 10
	streams        = 8
	connectTimeout = 5 * time.Second
)

// Checks are the process's answers; nil means yes. They are called at any time and must not block.
type Checks struct {
	Started, Ready, Alive func() bool
}

// Serve answers probes at host:port until stop is called. With an empty address it does nothing.
func Serve(address string, checks Checks) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--health: %w", err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytes),
		grpc.MaxConcurrentStreams(streams), grpc.ConnectionTimeout(connectTimeout))
	healthpb.RegisterHealthServer(server, &service{checks: checks})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with stop; after an error the probes fail
	}()
	return func() {
		server.Stop()
		<-served
	}, nil
}

type service struct {
	healthpb.UnimplementedHealthServer
	checks Checks
}

// Check implements the service.
func (s *service) Check(_ context.Context, r *healthpb.HealthCheckRequest) (
	*healthpb.HealthCheckResponse, error) {
	var check func() bool
	switch r.Service {
	case "", Readiness:
		check = s.checks.Ready
	case Liveness:
		check = s.checks.Alive
	case Startup:
		check = s.checks.Started
	default:
		return nil, status.Errorf(codes.NotFound, "no service %q: ask for %s, %s or %s", r.Service,
			Startup, Readiness, Liveness)
	}
	answer := healthpb.HealthCheckResponse_NOT_SERVING
	if check == nil || check() {
		answer = healthpb.HealthCheckResponse_SERVING
	}
	return &healthpb.HealthCheckResponse{Status: answer}, nil
}

// Flag is an answer that the process sets. Its zero value is no.
type Flag struct{ set atomic.Bool }

// Set sets the answer.
func (f *Flag) Set(yes bool) { f.set.Store(yes) }

// Is returns the answer.
func (f *Flag) Is() bool { return f.set.Load() }
