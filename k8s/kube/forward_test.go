package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observer answers as the observer in a pod does, and returns its address.
func observer(t *testing.T, pod, leader string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/state" {
			fmt.Fprintf(w, `{"leader":"coordinator-%s-1"}`, leader)
			return
		}
		fmt.Fprintf(w, "the page of %s", pod)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func coordinatorPod(name string) *corev1.Pod {
	pod := somePod(name, "", corev1.PodRunning, map[string]string{labelName: "rondo",
		labelComponent: Coordinator, labelJob: "book"})
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Observer, Ready: true}}
	return pod
}

// page reads what the forwarded port shows, by a connection of its own.
func page(t *testing.T, f *Forward) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		Timeout: 20 * time.Second}
	response, err := client.Get(f.URL())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}

// TestForward leads to the leader's pod, and to the other when that goes.
func TestForward(t *testing.T) {
	checkLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	api := &forwarder{listening: map[string]string{
		"book-coordinator-a:8080": observer(t, "a", "book-coordinator-b"),
		"book-coordinator-b:8080": observer(t, "b", "book-coordinator-b"),
	}}
	c := serveTunnel(t, api, someJob(1, nil), coordinatorPod("book-coordinator-a"),
		coordinatorPod("book-coordinator-b")).cluster
	var notes told
	f, err := c.Forward(ctx, "book", 0, notes.say)
	if err != nil {
		t.Fatal(err)
	}
	run := make(chan error, 1)
	go func() { run <- f.Run(ctx) }()
	for range 2 {
		if got := page(t, f); got != "the page of b" {
			t.Errorf("it shows %q", got)
		}
	}
	err = c.Client.CoreV1().Pods("here").Delete(ctx, "book-coordinator-b", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	api.cut()
	if got := page(t, f); got != "the page of a" {
		t.Errorf("without the leader's pod it shows %q", got)
	}
	want := "observer: pod book-coordinator-b\nobserver: pod book-coordinator-a"
	if got := notes.String(); got != want {
		t.Errorf("it said\n%s\nwant\n%s", got, want)
	}
	cancel()
	if err := <-run; !errors.Is(err, context.Canceled) {
		t.Errorf("its end: %v", err)
	}
}

func TestForwardSaysWhatCannotBe(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	c := serveTunnel(t, &forwarder{}, someJob(1, nil)).cluster
	for port, want := range map[int]string{
		busy.Addr().(*net.TCPAddr).Port: "address already in use: give another, or 0 for any",
		0:                               "no observer of job book is ready",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.Forward(ctx, "book", port, func(string) {})
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("port %d: %v, want %s", port, err, want)
		}
	}
}
