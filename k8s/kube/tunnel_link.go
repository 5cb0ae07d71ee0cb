package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/websocket"
)

const linkPing = 5 * time.Second // between signs of life, so that nobody thinks a link idle

// A podLink carries one TCP connection to a pod: a request to the API server that was upgraded to
// SPDY, with a stream for the bytes and one on which the pod's node says what went wrong. Each
// connection has a link of its own, because SPDY lets a stream that nobody reads hold up others.
type podLink struct {
	raw     net.Conn // to the API server
	cutting sync.Once
	conn    httpstream.Connection
	data    httpstream.Stream
	reasons httpstream.Stream
}

// openLink asks the API server for the port of a pod: over a WebSocket, or, where a server or a
// proxy on the way does not know those, with the upgrade to SPDY of Kubernetes before 1.31.
func (t *Tunnel) openLink(ctx context.Context, to podPort) (*podLink, error) {
	address, err := t.cluster.portForwardURL(to)
	if err != nil {
		return nil, err
	}
	raw, err := t.cluster.dialWebSocket(ctx, address)
	if httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) {
		raw, err = t.dialSPDY(ctx, address)
	}
	if err != nil {
		return nil, err
	}
	conn, err := spdy.NewClientConnectionWithPings(raw, linkPing)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	link := &podLink{raw: raw, conn: conn}
	if err := link.start(ctx, to.port); err != nil {
		link.cut()
		return nil, err
	}
	return link, nil
}

// portForwardURL is where the API server forwards ports of the pod.
func (c *Cluster) portForwardURL(to podPort) (*url.URL, error) {
	base, _, err := rest.DefaultServerUrlFor(c.Config)
	if err != nil {
		return nil, err
	}
	return base.JoinPath("api", "v1", "namespaces", to.namespace, "pods", to.pod,
		"portforward"), nil
}

func (c *Cluster) dialWebSocket(ctx context.Context, address *url.URL) (net.Conn, error) {
	transport, holder, err := websocket.RoundTripperFor(c.Config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, request,
		constants.WebsocketsSPDYTunnelingPortForwardV1)
	if err != nil {
		return nil, err
	}
	return portforward.NewTunnelingConnection("rondo", conn), nil
}

// upgrading is an HTTP client that can be asked for an upgrade.
func (c *Cluster) upgrading() (*http.Client, error) {
	config := rest.CopyConfig(c.Config)
	config.Timeout = 0                       // it would end the connection, too
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrades
	return rest.HTTPClientFor(config)
}

// dialSPDY makes the upgrade with net/http, which can be cancelled; client-go's own dialer cannot.
func (t *Tunnel) dialSPDY(ctx context.Context, address *url.URL) (net.Conn, error) {
	client, err := t.older()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	request.Header.Set(httpstream.HeaderProtocolVersion, constants.PortForwardV1Name)
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	stream, writable := response.Body.(io.ReadWriteCloser)
	if response.StatusCode != http.StatusSwitchingProtocols || !writable {
		defer func() { _ = response.Body.Close() }()
		return nil, refusedUpgrade(response)
	}
	return upgraded{stream}, nil
}

// refusedUpgrade is the API server's reason not to forward a port.
func refusedUpgrade(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, reasonBytes))
	if err != nil {
		return fmt.Errorf("%s: %w", response.Status, err)
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if status, is := decoded.(*metav1.Status); err == nil && is {
		return &apierrors.StatusError{ErrStatus: *status}
	}
	return fmt.Errorf("%s: %s", response.Status, inShort(string(text)))
}

// start opens the link's streams.
func (l *podLink) start(ctx context.Context, port int) error {
	opened := make(chan error, 1)
	go func() { opened <- l.createStreams(port) }() // client-go gives each stream 30 s at most
	select {
	case err := <-opened:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *podLink) createStreams(port int) (err error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	if l.reasons, err = l.conn.CreateStream(headers); err != nil {
		return fmt.Errorf("opening the stream for errors: %w", err)
	}
	_ = l.reasons.Close() // we write nothing there
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	if l.data, err = l.conn.CreateStream(headers); err != nil {
		return fmt.Errorf("opening the stream for data: %w", err)
	}
	return nil
}

// close ends the streams and says goodbye; a server that takes none of it is cut off.
func (l *podLink) close() {
	late := time.AfterFunc(tunnelGoodbye, l.cut)
	defer late.Stop()
	_ = l.data.Reset()
	_ = l.reasons.Reset()
	_ = l.conn.Close()
	<-l.conn.CloseChan()
}

// cut ends the connection to the API server, and with it all that waits for it.
func (l *podLink) cut() { l.cutting.Do(func() { _ = l.raw.Close() }) }

// upgraded is a connection that net/http has handed over. It has no deadlines, and those who use
// it set none.
type upgraded struct{ io.ReadWriteCloser }

func (upgraded) LocalAddr() net.Addr              { return podPort{} }
func (upgraded) RemoteAddr() net.Addr             { return podPort{} }
func (upgraded) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (upgraded) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (upgraded) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
