package health_test

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"rondo/internal/health"
	"rondo/internal/port"
)

// TestProbes: each probe asks the process, and the three answers are independent.
func TestProbes(t *testing.T) {
	var started, ready health.Flag
	var alive atomic.Bool
	alive.Store(true)
	address := port.ForTest(t).Address()
	stop, err := health.Serve(address, health.Checks{Started: started.Is,
		Ready: ready.Is, Alive: alive.Load})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	probe := healthpb.NewHealthClient(conn)
	want := func(service string, serving bool) {
		t.Helper()
		answer, err := probe.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if got := answer.GetStatus() == healthpb.HealthCheckResponse_SERVING; err != nil ||
			got != serving {
			t.Errorf("service %q: %v, %v; want serving: %t", service, answer, err, serving)
		}
	}
	want(health.Startup, false)
	started.Set(true)
	want(health.Startup, true)
	want("", false)
	want(health.Readiness, false)
	want(health.Liveness, true)
	ready.Set(true)
	want("", true)
	want(health.Readiness, true)
	ready.Set(false)
	alive.Store(false)
	want(health.Readiness, false)
	want(health.Liveness, false)
	want(health.Startup, true)
	_, err = probe.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
	if _, err := health.Serve(address, health.Checks{}); err == nil ||
		!strings.Contains(err.Error(), "--health") {
		t.Errorf("an address in use: %v", err)
	}
}

// TestAfterStopNobodyAnswers also checks that no port is opened for an empty address.
func TestAfterStopNobodyAnswers(t *testing.T) {
	address := port.ForTest(t).Address()
	stop, err := health.Serve(address, health.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		_ = conn.Close()
		t.Error("somebody listens after stop")
	}
	if stop, err = health.Serve("", health.Checks{}); err != nil {
		t.Error(err)
	}
	stop()
}
