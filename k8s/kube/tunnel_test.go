package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gorilla "github.com/gorilla/websocket"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/apimachinery/pkg/util/intstr"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
)

// forwarder is the part of an API server that forwards ports of pods, as a kubelet does it: it
// dials, and says on the error stream what goes wrong.
type forwarder struct {
	noWebSockets bool
	listening    map[string]string // "pod:port" to where that is here

	mu    sync.Mutex
	links []httpstream.Connection // to end with the server
	paths []string
	ways  []string // "websocket" or "spdy"
}

var forwardPath = regexp.MustCompile(`^/api/v1/namespaces/([^/]+)/pods/([^/]+)/portforward$`)

func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	match := forwardPath.FindStringSubmatch(r.URL.Path)
	if match == nil || match[2] == "forbidden" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure",`+
			`"reason":"Forbidden","code":403,"message":"pods \"forbidden\" is forbidden: `+
			`User \"eva\" cannot create resource \"pods/portforward\" in API group \"\" in the `+
			`namespace \"here\""}`)
		return
	}
	streams := make(chan httpstream.Stream, 2)
	accept := func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	}
	way, link := "spdy", httpstream.Connection(nil)
	if gorilla.IsWebSocketUpgrade(r) {
		if f.noWebSockets {
			http.Error(w, "no such upgrade", http.StatusBadRequest)
			return
		}
		way = "websocket"
		upgrader := gorilla.Upgrader{
			Subprotocols: []string{constants.WebsocketsSPDYTunnelingPortForwardV1}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		tunnelled := portforward.NewTunnelingConnection("server", conn)
		if link, err = spdy.NewServerConnection(tunnelled, accept); err != nil {
			return
		}
	} else {
		if _, err := httpstream.Handshake(r, w, []string{constants.PortForwardV1Name}); err != nil {
			return
		}
		link = spdy.NewResponseUpgrader().UpgradeResponse(w, r, accept)
		if link == nil {
			return
		}
	}
	f.mu.Lock()
	f.links, f.paths = append(f.links, link), append(f.paths, r.URL.Path)
	f.ways = append(f.ways, way)
	f.mu.Unlock()
	f.forward(match[2], link, streams)
	_ = link.Close()
}

// forward carries the one connection of a link.
func (f *forwarder) forward(pod string, link httpstream.Connection,
	streams <-chan httpstream.Stream) {
	var data, reasons httpstream.Stream
	for data == nil || reasons == nil {
		select {
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				reasons = s
			} else {
				data = s
			}
		case <-link.CloseChan():
			return
		}
	}
	defer func() { _ = data.Close() }()
	defer func() { _ = reasons.Close() }()
	port := data.Headers().Get(corev1.PortHeader)
	conn, err := net.Dial("tcp", f.listening[pod+":"+port])
	if err != nil {
		fmt.Fprintf(reasons, "an error occurred when forwarding 0 -> %s: failed to connect to "+
			"localhost:%s inside namespace: dial tcp4 127.0.0.1:%s: connect: connection refused",
			port, port, port)
		return
	}
	defer func() { _ = conn.Close() }()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(data, conn)
	}()
	if _, err := io.Copy(conn, data); err == nil {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	select {
	case <-back:
	case <-link.CloseChan():
	}
}

// cut ends all links as a network does.
func (f *forwarder) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, link := range f.links {
		_ = link.Close()
	}
	f.links = nil
}

// serveTunnel is a cluster with these objects, whose API server forwards ports.
func serveTunnel(t *testing.T, f *forwarder, objects ...runtime.Object) *Tunnel {
	t.Helper()
	server := httptest.NewServer(f)
	tunnel := NewTunnel(&Cluster{Client: fake.NewClientset(objects...), Namespace: "here",
		Config: &rest.Config{Host: server.URL}})
	t.Cleanup(func() {
		tunnel.Close()
		f.cut()
		server.Close()
	})
	return tunnel
}

// echo answers every connection with what it hears, and returns its address.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func somePod(name, ip string, phase corev1.PodPhase, labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "here",
		Labels: labels}, Status: corev1.PodStatus{PodIP: ip, Phase: phase}}
	if phase == corev1.PodRunning {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}
	}
	return pod
}

// checkLeaks fails the test if it leaves a goroutine behind; spdystream's own goodbye may take
// another second.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, before,
			goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"))
	})
}

func TestTunnelCarriesAConnection(t *testing.T) {
	for _, noWebSockets := range []bool{false, true} {
		t.Run(fmt.Sprintf("without websockets %v", noWebSockets), func(t *testing.T) {
			checkLeaks(t)
			f := &forwarder{noWebSockets: noWebSockets,
				listening: map[string]string{"rondo-etcd-0:2379": echo(t)}}
			tunnel := serveTunnel(t, f, somePod("rondo-etcd-0", "192.0.2.9", corev1.PodRunning,
				nil))
			ctx, cancel := context.WithTimeout(t.Context(), tunnelDial)
			conn, err := tunnel.Dial(ctx, "rondo-etcd-0.rondo-etcd:2379")
			if err != nil {
				t.Fatal(err)
			}
			cancel() // ends the dialling, not the connection
			sent := strings.Repeat("a rondo is a round. ", 50_000)
			go func() { _, _ = io.WriteString(conn, sent) }()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != sent {
				t.Errorf("%d bytes came back changed: %v", len(got), err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("reading past the deadline: %v", err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			if _, err := conn.Read(got); !errors.Is(err, net.ErrClosed) {
				t.Errorf("reading a closed connection: %v", err)
			}
			want := map[bool]string{true: "spdy", false: "websocket"}[noWebSockets]
			if !slices.Equal(f.ways, []string{want}) {
				t.Errorf("the way was %v, want %s", f.ways, want)
			}
		})
	}
}

func TestTunnelSaysWhyAConnectionFails(t *testing.T) {
	checkLeaks(t)
	tunnel := serveTunnel(t, &forwarder{}, somePod("w", "192.0.2.9", corev1.PodRunning, nil))
	conn, err := tunnel.Dial(t.Context(), "192.0.2.9:7000")
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Read(make([]byte, 1))
	if want := "pod w, port 7000: connection refused"; err == nil ||
		!strings.HasPrefix(err.Error(), want) {
		t.Errorf("reading: %v, want %s", err, want)
	}
	if _, err := conn.Write([]byte("x")); err == nil {
		t.Error("writing to a connection that was refused is no error")
	}
	_ = conn.Close()

	_, err = tunnel.DialPod(t.Context(), "forbidden", 7000)
	if want := `user "eva" may not create pods/portforward in namespace here`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("dialling without the right: %v, want %s", err, want)
	}
}

// TestTunnelEndsWithTheLink: neither a link that breaks nor a tunnel that is closed leaves
// anybody waiting.
func TestTunnelEndsWithTheLink(t *testing.T) {
	checkLeaks(t)
	f := &forwarder{listening: map[string]string{"w:1": echo(t)}}
	tunnel := serveTunnel(t, f)
	readCut(t, tunnel, "link", f.cut, io.EOF)
	readCut(t, tunnel, "tunnel", tunnel.Close, errTunnelClosed)
	if _, err := tunnel.DialPod(t.Context(), "w", 1); !errors.Is(err, errTunnelClosed) {
		t.Errorf("dialling through a closed tunnel: %v", err)
	}
}

// readCut reads while the connection is ended from elsewhere.
func readCut(t *testing.T, tunnel *Tunnel, name string, cut func(), want error) {
	t.Helper()
	conn, err := tunnel.DialPod(t.Context(), "w", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		failed <- err
	}()
	cut()
	if err := <-failed; !errors.Is(err, want) {
		t.Errorf("reading when the %s is cut: %v, want %v", name, err, want)
	}
}

func TestTunnelBoundsItsConnections(t *testing.T) {
	f := &forwarder{listening: map[string]string{"w:1": echo(t)}}
	tunnel := serveTunnel(t, f)
	var last net.Conn
	for range tunnelConns {
		conn, err := tunnel.DialPod(t.Context(), "w", 1)
		if err != nil {
			t.Fatal(err)
		}
		last = conn
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := tunnel.DialPod(ctx, "w", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one connection too many: %v", err)
	}
	_ = last.Close()
	conn, err := tunnel.DialPod(t.Context(), "w", 1)
	if err != nil {
		t.Fatalf("after one was closed: %v", err)
	}
	_ = conn.Close()
}

func TestTunnelResolvesAddresses(t *testing.T) {
	labels := map[string]string{"app": "c"}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "book-coordinator",
		Namespace: "here"}, Spec: corev1.ServiceSpec{Selector: labels,
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}}}
	headless := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "rondo-etcd",
		Namespace: "here"}}
	leader := somePod("leader", "192.0.2.3", corev1.PodRunning, labels)
	leader.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{
		{Name: "http", ContainerPort: 8080}}}}
	cluster := &Cluster{Namespace: "here", Client: fake.NewClientset(service, headless, leader,
		somePod("gone", "192.0.2.2", corev1.PodFailed, nil),
		somePod("idle", "192.0.2.4", corev1.PodPending, labels),
		somePod("rondo-etcd-0", "192.0.2.5", corev1.PodRunning, nil),
		somePod("rondo-etcd-1", "", corev1.PodPending, nil))}
	for address, want := range map[string]string{
		"192.0.2.3:7000":                                   "leader 7000",
		"rondo-etcd-0.rondo-etcd:2379":                     "rondo-etcd-0 2379",
		"rondo-etcd-0.rondo-etcd.here:2379":                "rondo-etcd-0 2379",
		"rondo-etcd-0.rondo-etcd.here.svc.cluster.local:1": "rondo-etcd-0 1",
		"book-coordinator:80":                              "leader 8080",
		"book-coordinator.here:7000":                       "leader 7000",
		"book-coordinator.here.svc:7000":                   "leader 7000",
		"rondo-etcd-1.rondo-etcd:2379":                     "pod rondo-etcd-1 is pending",
		"rondo-etcd-2.rondo-etcd:2379":                     "there is no pod rondo-etcd-2",
		"rondo-etcd:2379":                                  "no way to Service rondo-etcd",
		"192.0.2.2:7000":                                   errNotOfCluster.Error(),
		"etcd.example.com:2379":                            errNotOfCluster.Error(),
		"etcd-0.eu.example.com:2379":                       errNotOfCluster.Error(),
		"no-port":                                          "is not host:port",
		"a:b":                                              `"b" is not the number of a port`,
	} {
		to, err := cluster.resolve(t.Context(), address)
		got := to.pod + " " + strconv.Itoa(to.port)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
