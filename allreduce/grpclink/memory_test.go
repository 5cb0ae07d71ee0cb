//go:build linux

package grpclink_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/allreduce/linktest"
)

func TestMappedLink(t *testing.T) {
	linktest.Run(t, func(t *testing.T, world int) []linktest.Node {
		return form(t, world, grpclink.ByShm)
	})
}

func TestUnixLink(t *testing.T) {
	linktest.Run(t, func(t *testing.T, world int) []linktest.Node {
		return form(t, world, grpclink.ByUnix)
	})
}

// TestUnixInsteadOfMemory: without shared memory the neighbours use a unix socket.
func TestUnixInsteadOfMemory(t *testing.T) {
	links, errs := connectBoth(t, [2]grpclink.Transport{grpclink.ByAny, grpclink.ByUnix})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	want := [2]string{"unix to rank 1 (the neighbour is to use none), unix from rank 1",
		"unix to rank 0, unix from rank 0 (the neighbour is to use none)"}
	for rank := range links {
		if got := grpclink.Describe(links[rank]); got != want[rank] {
			t.Errorf("rank %d: links %q, want %q", rank, got, want[rank])
		}
	}
}

// TestUnixRequired: ByUnix forms no ring without unix sockets.
func TestUnixRequired(t *testing.T) {
	_, errs := connectBoth(t, [2]grpclink.Transport{grpclink.ByUnix, grpclink.ByTCP})
	var apart *grpclink.TransportError
	if !errors.As(errs[0], &apart) || apart.Peer.Rank != 1 || apart.Transport != grpclink.ByUnix {
		t.Fatalf("rank 0: %v, want a TransportError of rank 1", errs[0])
	}
	const want = "the neighbour has no socket for workers on its host; --link auto takes TCP there"
	if !strings.HasSuffix(errs[0].Error(), want) {
		t.Errorf("rank 0: %q does not end with %q", errs[0], want)
	}
}

// connectBoth connects a ring of two with a Transport for each rank.
func connectBoth(
	t *testing.T, way [2]grpclink.Transport,
) (links [2]allreduce.Links, errs []error) {
	t.Helper()
	var workers [2]*worker
	var addresses []string
	for rank := range workers {
		workers[rank] = startWorker(t, "opticks", grpclink.ServerConfig{Transport: way[rank]})
		workers[rank].dial.Transport = way[rank]
		addresses = append(addresses, workers[rank].address)
		t.Cleanup(workers[rank].kill)
	}
	errs = linktest.Each(2, func(rank int) (err error) {
		w := workers[rank]
		links[rank], err = grpclink.Connect(
			context.Background(), w.server, seat(rank, 2), addresses, w.dial)
		return err
	})
	t.Cleanup(func() {
		for _, l := range links {
			if l != (allreduce.Links{}) {
				l.Predecessor.Close()
				l.Successor.Close()
			}
		}
	})
	return links, errs
}

// TestOneSideWithoutMemory: the ring is formed over gRPC, and Describe has the reason.
func TestOneSideWithoutMemory(t *testing.T) {
	links, errs := connectBoth(t,
		[2]grpclink.Transport{grpclink.ByAny, grpclink.ByTCP})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	want := [2]string{"tcp to rank 1 (the neighbour is to use none), tcp from rank 1",
		"tcp to rank 0, tcp from rank 0 (the neighbour is to use none)"}
	for rank := range links {
		if got := grpclink.Describe(links[rank]); got != want[rank] {
			t.Errorf("rank %d: links %q, want %q", rank, got, want[rank])
		}
	}
	nodes := []linktest.Node{{Links: links[0]}, {Links: links[1]}}
	rings := linktest.Rings(t, nodes, 1, 0, time.Minute)
	linktest.CheckSum(t, rings, rand.New(rand.NewPCG(1, 2)), 1000)
}

// TestMemoryRequired: ByShm forms no ring without shared memory. The rank that cannot use it
// reports the neighbour, the reason and the remedy.
func TestMemoryRequired(t *testing.T) {
	_, errs := connectBoth(t, [2]grpclink.Transport{grpclink.ByShm, grpclink.ByTCP})
	var unshared *grpclink.TransportError
	if !errors.As(errs[0], &unshared) || unshared.Peer.Rank != 1 {
		t.Fatalf("rank 0: %v, want a TransportError of rank 1", errs[0])
	}
	const want = "the neighbour is to use none; --link auto takes TCP there"
	if !strings.HasSuffix(errs[0].Error(), want) {
		t.Errorf("rank 0: %q does not end with %q", errs[0], want)
	}
}

// folderVariable turns the test binary into rank 1 of a ring of two with its sockets in that
// folder.
const folderVariable = "RONDO_TEST_RING_FOLDER"

// joinOnSockets runs a rank of that ring: it sums ones, and returns Describe of its links.
func joinOnSockets(folder string, rank int) (ways string, err error) {
	listener, err := net.Listen("unix", filepath.Join(folder, fmt.Sprint(rank)))
	if err != nil {
		return "", err
	}
	server, err := grpclink.NewServer("opticks",
		grpclink.ServerConfig{Transport: grpclink.ByAny})
	if err != nil {
		return "", err
	}
	g := grpc.NewServer(grpclink.ServerOptions(nil)...)
	server.Register(g)
	go g.Serve(listener)
	defer g.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), linktest.Moment)
	defer cancel()
	links, err := grpclink.Connect(ctx, server, seat(rank, 2),
		[]string{"unix:" + filepath.Join(folder, "0"), "unix:" + filepath.Join(folder, "1")},
		grpclink.DialConfig{Transport: grpclink.ByAny})
	if err != nil {
		return "", err
	}
	ring, err := allreduce.New(allreduce.Config{Rank: allreduce.Rank(rank), World: 2,
		Generation: 1, ChunkTimeout: time.Second, StepTimeout: linktest.Moment}, links)
	if err != nil {
		return "", err
	}
	ones := []float32{1, 1, 1}
	err = ring.AllReduce(ctx, ones)
	if err == nil && !slices.Equal(ones, []float32{2, 2, 2}) {
		err = fmt.Errorf("the sum of two ones is %v", ones)
	}
	return grpclink.Describe(links), errors.Join(err, ring.Close())
}

func TestMain(m *testing.M) {
	if folder := os.Getenv(folderVariable); folder != "" {
		os.Exit(child(folder))
	}
	goleak.VerifyTestMain(m)
}

func child(folder string) int {
	ways, err := joinOnSockets(folder, 1)
	fmt.Println(ways, err)
	if err != nil {
		return 1
	}
	return 0
}

// TestProcesses: two processes share memory, unless their network namespaces differ.
func TestProcesses(t *testing.T) {
	for _, c := range []struct {
		name       string
		attributes *syscall.SysProcAttr
		want       string // rank 0's description
	}{
		{"one namespace", nil, "shm to rank 1, shm from rank 1"},
		{"two namespaces", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET},
			"unix to rank 1 (the two ends are not in the same network namespace of one host), " +
				"unix from rank 1 (the two ends are not in the same network namespace of " +
				"one host)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := t.TempDir()
			other := exec.Command(os.Args[0])
			other.Env = append(os.Environ(), folderVariable+"="+folder)
			other.SysProcAttr = c.attributes
			var said strings.Builder
			other.Stdout = &said
			err := other.Start()
			if errors.Is(err, syscall.EPERM) {
				t.Skip("this user may not make network namespaces; root may")
			}
			if err != nil {
				t.Fatal(err)
			}
			ways, err := joinOnSockets(folder, 0)
			if err := errors.Join(err, other.Wait()); err != nil {
				t.Fatalf("%v; rank 1 says %q", err, said.String())
			}
			if ways != c.want {
				t.Errorf("links %q, want %q", ways, c.want)
			}
		})
	}
}
