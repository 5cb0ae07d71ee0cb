package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Limits of a forwarded port.
const (
	forwardConns = 16               // at once; who comes then waits
	forwardTries = 10 * time.Second // to find an observer that answers
	forwardPause = 500 * time.Millisecond
	observerPort = 8080
	// An observer's answer to who leads, and the size of what it says of the job.
	forwardGreeting = 5 * time.Second
	maxState        = 16 << 20
)

// A Forward is a local port that leads to the page of a job's observer: beside the coordinator
// that leads, or beside another one where that pod does not answer.
type Forward struct {
	cluster  *Cluster
	job      string
	tunnel   *Tunnel
	listener net.Listener
	note     func(string)

	mu  sync.Mutex
	pod string // that answered last
}

// Forward opens the port; 0 is any. note is told where connections lead to, and what goes wrong.
func (c *Cluster) Forward(ctx context.Context, job string, port int, note func(string)) (
	*Forward, error) {
	if _, err := c.Job(ctx, job); err != nil {
		return nil, err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--port %d: %w: give another, or 0 for any", port, err)
	}
	f := &Forward{cluster: c, job: job, tunnel: NewTunnel(c), listener: listener, note: note}
	probe, err := f.connect(ctx)
	if err != nil {
		f.tunnel.Close()
		_ = listener.Close()
		return nil, err
	}
	_ = probe.Close()
	return f, nil
}

// URL is what a browser is given.
func (f *Forward) URL() string { return fmt.Sprintf("http://%s/", f.listener.Addr()) }

// Run serves the port until ctx ends.
func (f *Forward) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		<-ctx.Done()
		_ = f.listener.Close()
		f.tunnel.Close()
	})
	slots := make(chan struct{}, forwardConns)
	var failed error
	for failed == nil {
		slots <- struct{}{}
		conn, err := f.listener.Accept()
		if err != nil {
			failed = err
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			f.serve(ctx, conn)
		})
	}
	ended := ctx.Err()
	cancel()
	running.Wait()
	if ended != nil {
		return context.Cause(ctx)
	}
	return failed
}

// serve carries one connection.
func (f *Forward) serve(ctx context.Context, local net.Conn) {
	defer func() { _ = local.Close() }()
	closing := context.AfterFunc(ctx, func() { _ = local.Close() })
	defer closing()
	remote, err := f.connect(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.note(err.Error())
		}
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(local, remote)
		_ = local.Close()
	})
	_, _ = io.Copy(remote, local)
	_ = remote.Close()
	back.Wait()
}

// connect opens a connection to an observer; where none answers it tries again, for a while.
func (f *Forward) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTries)
	defer cancel()
	for {
		pod, err := f.choose(ctx)
		if err == nil {
			var conn net.Conn
			if conn, err = f.tunnel.DialPod(ctx, pod, observerPort); err == nil {
				return &observed{Conn: conn, forward: f, pod: pod}, nil
			}
			f.forget(pod)
		}
		if waited := wait(ctx, forwardPause); waited != nil {
			return nil, err
		}
	}
}

// choose returns the pod that answered last, while that is ready, or looks for another one.
func (f *Forward) choose(ctx context.Context) (string, error) {
	list, err := f.cluster.Client.CoreV1().Pods(f.cluster.Namespace).List(ctx,
		selecting(f.job, Coordinator))
	if err != nil {
		return "", Explain(err, "looking for the job's observers")
	}
	f.mu.Lock()
	before := f.pod
	f.mu.Unlock()
	var pods []string
	for i := range list.Items {
		pod := &list.Items[i]
		if observing(pod) && pod.Name == before {
			return before, nil
		}
		if observing(pod) {
			pods = append(pods, pod.Name)
		}
	}
	err = fmt.Errorf("no observer of job %s is ready%s", f.job, f.cluster.why(f.job))
	for _, pod := range pods {
		var leader string
		if leader, err = f.greet(ctx, pod); err != nil {
			continue
		}
		for _, other := range pods {
			if other != pod && strings.Contains(leader, other) {
				if _, err := f.greet(ctx, other); err == nil {
					pod = other
				}
			}
		}
		f.mu.Lock()
		f.pod = pod
		f.mu.Unlock()
		f.note("observer: pod " + pod)
		return pod, nil
	}
	return "", err
}

// forget has the next connection look for another pod.
func (f *Forward) forget(pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pod == pod {
		f.pod = ""
	}
}

// observing says whether a pod's observer takes requests.
func observing(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.ContainerStatuses,
		func(s corev1.ContainerStatus) bool { return s.Name == Observer && s.Ready })
}

// greet asks an observer who leads the job.
func (f *Forward) greet(ctx context.Context, pod string) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, forwardGreeting)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return f.tunnel.DialPod(ctx, pod, observerPort)
		}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+pod+"/api/state", nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	var state struct {
		Leader string `json:"leader"`
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the observer of pod %s answers %s", pod, response.Status)
	}
	err = json.NewDecoder(io.LimitReader(response.Body, maxState)).Decode(&state)
	return state.Leader, err
}

// observed is a connection to an observer; one that ends before a byte has come has the next look
// for another pod.
type observed struct {
	net.Conn
	forward *Forward
	pod     string
	heard   bool
}

func (o *observed) Read(p []byte) (int, error) {
	n, err := o.Conn.Read(p)
	if err != nil && n == 0 && !o.heard && !errors.Is(err, net.ErrClosed) {
		o.forward.forget(o.pod)
	}
	o.heard = o.heard || n > 0
	return n, err
}
