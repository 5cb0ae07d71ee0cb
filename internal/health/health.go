// Package health answers the probes of a platform by the gRPC health protocol. It asks the process
// at each probe, and keeps no state of its own. It may import gRPC.
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

// The services that can be asked for; the process as a whole is "", and is what Readiness is.
const (
	Startup   = "startup"   // it has what it works with; nobody asks for the others before
	Readiness = "readiness" // it does its work
	Liveness  = "liveness"  // it is not stuck: another would do no better
)

// Limits of the service: a probe is one small message.
const (
	messageBytes   = 1 << 10
	streams        = 8
	connectTimeout = 5 * time.Second
)

// Checks are the process's answers; nil is yes. They are asked at any time, and answer at once.
type Checks struct {
	Started, Ready, Alive func() bool
}

// Serve answers at host:port until stop is called; at an empty address it does nothing.
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
		_ = server.Serve(listener) // it ends with stop; without it probes find nobody
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

// Flag is an answer that the process sets; its zero value is no.
type Flag struct{ set atomic.Bool }

// Set gives the answer from now on.
func (f *Flag) Set(yes bool) { f.set.Store(yes) }

// Is returns the answer.
func (f *Flag) Is() bool { return f.set.Load() }
