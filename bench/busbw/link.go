package busbw

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
)

// Timeouts of the measured ring, as a job's are.
const (
	chunkTimeout = 5 * time.Second
	stepTimeout  = 30 * time.Second
	meetTimeout  = 30 * time.Second
)

// link is a kind of link between neighbours.
type link struct {
	name string
	// listen opens a rank's listener. Nil for a link within the process.
	listen func(address string) (door, error)
	way    grpclink.Transport // by which the chunks of a link that listens go

	// secure makes the two ends' credentials; nil: a connection without TLS.
	secure func() (server, client credentials.TransportCredentials, err error)
}

// door is where a rank's predecessor comes in.
type door struct {
	net.Listener
	address string // as the predecessor dials it
}

// MemoryLink names the link between ranks that are goroutines of one process. It passes slices, so
// that nothing of it can be held against a ring of processes.
const MemoryLink = "memory"

// tlsLink names the link over TLS.
const tlsLink = "tls"

// links are the kinds there are.
func links() []link {
	return []link{
		{name: "tcp", listen: listenTCP, way: grpclink.ByTCP},
		{name: "unix", listen: listenTCP, way: grpclink.ByUnix},
		{name: "shm", listen: listenTCP, way: grpclink.ByShm},
		{name: tlsLink, listen: listenTCP, way: grpclink.ByTCP, secure: selfSigned},
		{name: "grpc", listen: listenTCP, way: grpclink.ByTCP, secure: plainGRPC},
		{name: MemoryLink},
	}
}

// Links are the names of the kinds of links.
func Links() []string {
	var names []string
	for _, l := range links() {
		names = append(names, l.name)
	}
	return names
}

func linkOf(name string) (link, bool) {
	for _, l := range links() {
		if l.name == name {
			return l, true
		}
	}
	return link{}, false
}

// loopback is where ranks listen that are all on this machine.
const loopback = "127.0.0.1"

func listenTCP(address string) (door, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return door{}, err
	}
	return door{listener, listener.Addr().String()}, nil
}

// ends makes a rank's links in two steps, for each needs the others' addresses.
type ends interface {
	address() string
	connect(ctx context.Context, s seat, addresses []string) (allreduce.Links, error)
	close()
}

// grpcEnds are a rank's links over gRPC, whose chunks may go through shared memory.
type grpcEnds struct {
	door
	link   link
	links  *grpclink.Server
	server *grpc.Server
	served sync.WaitGroup
	client credentials.TransportCredentials
}

// benchJob is the job that the ranks tell each other they belong to.
const benchJob = "bench"

func newGRPCEnds(l link, address string) (*grpcEnds, error) {
	links, err := grpclink.NewServer(benchJob, grpclink.ServerConfig{Transport: l.way})
	if err != nil {
		return nil, err
	}
	d, err := l.listen(address)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", l.name, err)
	}
	e := &grpcEnds{door: d, link: l, links: links}
	var server credentials.TransportCredentials
	if l.secure != nil {
		if server, e.client, err = l.secure(); err != nil {
			return nil, errors.Join(fmt.Errorf("link %s: %w", l.name, err), d.Close())
		}
	}
	e.server = grpc.NewServer(grpclink.ServerOptions(server)...)
	links.Register(e.server)
	local := links.ListenLocal() // before anybody can ask for it
	// If one fails, connect finds nobody there.
	e.served.Go(func() { _ = e.server.Serve(e.Listener) })
	if local != nil {
		e.served.Go(func() { _ = e.server.Serve(local) })
	}
	return e, nil
}

func (e *grpcEnds) address() string { return e.door.address }

func (e *grpcEnds) connect(
	ctx context.Context, s seat, addresses []string,
) (allreduce.Links, error) {
	links, err := grpclink.Connect(ctx, e.links, grpclink.Seat{Job: benchJob, Generation: 1,
		Rank: allreduce.Rank(s.Rank), World: s.World}, addresses,
		grpclink.DialConfig{Timeout: meetTimeout, Transport: e.link.way, Credentials: e.client})
	var apart *grpclink.TransportError
	if errors.As(err, &apart) { // which speaks of a job's flags
		err = fmt.Errorf("no link %v to %v: %s; --link tcp needs no more than an address",
			apart.Transport, apart.Peer, apart.Why)
	}
	return links, err
}

func (e *grpcEnds) close() {
	e.server.Stop()
	e.served.Wait()
}

// memoryEnds are a rank's links to goroutines of this process.
type memoryEnds allreduce.Links

// newMemoryEnds returns the links of a ring's ranks.
func newMemoryEnds(world int) []memoryEnds {
	all := make([]memoryEnds, world)
	peer := func(rank int) allreduce.Peer {
		return allreduce.Peer{Rank: allreduce.Rank(rank), Address: "memory"}
	}
	for rank := range all {
		next := (rank + 1) % world
		all[rank].Successor, all[next].Predecessor = allreduce.Pipe(peer(rank), peer(next))
	}
	return all
}

func (memoryEnds) address() string { return "memory" }

func (e memoryEnds) connect(context.Context, seat, []string) (allreduce.Links, error) {
	return allreduce.Links(e), nil
}

func (memoryEnds) close() {} // the ring closes the links
