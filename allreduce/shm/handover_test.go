//go:build linux

package shm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStrangersGetNothing: a process without the secret is turned away, and the offer stays open.
func TestStrangersGetNothing(t *testing.T) {
	offer, err := NewOffer()
	if err != nil {
		t.Fatal(err)
	}
	defer offer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	ticket := offer.Ticket()
	wrong := ticket[:len(ticket)-secretBytes*2] + Ticket(strings.Repeat("00", secretBytes))
	if _, err := Take(ctx, wrong); err == nil || !strings.Contains(err.Error(), "handed over") {
		t.Errorf("with another secret: %v, want a refusal", err)
	}
	address, _, err := ticket.parse()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUnix("unix", nil, address) // a process that dies before it sends anything
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	handOver(ctx, t, offer)
}

// TestHandoverAgain: after a failed handover a second try succeeds.
func TestHandoverAgain(t *testing.T) {
	offer, err := NewOffer()
	if err != nil {
		t.Fatal(err)
	}
	defer offer.Close()
	address, secret, err := offer.Ticket().parse()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUnix("unix", nil, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Write(secret[:secretBytes/4])
	// The memory is sent last. This end has stopped reading by then.
	if err := errors.Join(err, conn.CloseRead()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(secret[secretBytes/4 : secretBytes/2]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	handOver(ctx, t, offer)
}

// handOver takes the offer's memory and closes both its ends.
func handOver(ctx context.Context, t *testing.T, offer *Offer) {
	t.Helper()
	r, err := Take(ctx, offer.Ticket())
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	s, err := offer.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

func TestNobodyOffers(t *testing.T) {
	offer, err := NewOffer()
	if err != nil {
		t.Fatal(err)
	}
	offer.Close()
	if _, err := Take(context.Background(), offer.Ticket()); err == nil ||
		!strings.Contains(err.Error(), "not in the same network namespace") {
		t.Errorf("without an offer: %v, want the reason", err)
	}
	for _, ticket := range []Ticket{"", "x", Ticket(strings.Repeat("zz", ticketBytes/2)),
		offer.Ticket() + "00"} {
		if _, err := Take(context.Background(), ticket); err == nil ||
			!strings.Contains(err.Error(), "not a ticket") {
			t.Errorf("ticket %q: %v, want a refusal", ticket, err)
		}
	}
}

// TestHostileOffers: a receiver maps no memory that could be shrunk.
func TestHostileOffers(t *testing.T) {
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(plain)
	if err := unix.Ftruncate(plain, memoryBytes); err != nil {
		t.Fatal(err)
	}
	small, err := create(memoryBytes - 1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(small)
	good, err := create(memoryBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(good)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		name   string
		fds    []int
		change func(secret []byte) []byte
		want   string
	}{
		{"not sealed", []int{plain}, slices.Clone[[]byte], "seals"},
		{"too small", []int{small}, slices.Clone[[]byte], "bytes, want"},
		{"no memory", []int{int(null.Fd())}, slices.Clone[[]byte], "seals"},
		{"none", nil, slices.Clone[[]byte], "0 descriptors"},
		{"two", []int{good, good}, slices.Clone[[]byte], "descriptors"},
		{"hung up", nil, func([]byte) []byte { return nil }, "hung up"},
		{"half a secret", []int{good}, func(s []byte) []byte { return s[:3] }, "3 bytes"},
		{"another secret", []int{good}, func(s []byte) []byte { return make([]byte, len(s)) },
			"secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := descriptors(t)
			_, err := Take(context.Background(), impostor(t, c.fds, c.change))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Take: %v, want an error with %q", err, c.want)
			}
			if after := descriptors(t); after > before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

// TestUninterrupted: EINTR is repeated, and every other error is returned.
func TestUninterrupted(t *testing.T) {
	for _, want := range []error{nil, unix.ENOSPC} {
		says := []error{unix.EINTR, unix.EINTR, want}
		err := uninterrupted(func() error {
			next := says[0]
			says = says[1:]
			return next
		})
		if !errors.Is(err, want) || len(says) > 0 {
			t.Errorf("%v with %d answers left, want %v", err, len(says), want)
		}
	}
}

// impostor offers fds, with change applied to its half of the secret.
func impostor(t *testing.T, fds []int, change func([]byte) []byte) Ticket {
	t.Helper()
	ticket := Ticket(fmt.Sprintf("%0*x", ticketBytes, os.Getpid()))
	address, secret, err := ticket.parse()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		half := secretBytes / 2
		if _, err := io.ReadFull(conn, make([]byte, half)); err != nil {
			t.Error(err)
		}
		if show := change(secret[half:]); len(show) > 0 {
			if _, _, err := conn.WriteMsgUnix(show, unix.UnixRights(fds...), nil); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-served
	})
	return ticket
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, entry := range entries { // memory only: sockets close later
		name, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && strings.Contains(name, "memfd:") {
			count++
		}
	}
	return count
}

// ticketVariable turns the test binary into a process that takes an offer and waits to be killed.
const ticketVariable = "RONDO_TEST_SHM_TICKET"

func childTakes(ticket Ticket) int {
	r, err := Take(context.Background(), ticket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for {
		head, body, err := r.Receive()
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(len(head) + len(body))
		r.Release()
	}
}

// TestKilledProcessLeavesNothing: memory is shared with a process, which is killed. This end sees
// that at once, and no file, socket name or descriptor stays.
func TestKilledProcessLeavesNothing(t *testing.T) {
	files, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	offer, err := NewOffer()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), ticketVariable+"="+string(offer.Ticket()))
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Process.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), moment)
	defer cancel()
	s, err := offer.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(make([]byte, HeadBytes), make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != fmt.Sprint(HeadBytes+100_000) {
		t.Fatalf("the other process says %q: %v", line, err)
	}
	child.Process.Kill()
	for err = nil; err == nil; {
		err = s.Send(make([]byte, HeadBytes), nil)
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("Send to a process that was killed: %v, want EOF", err)
	}
	_ = child.Wait() // it was killed, so ignore its error
	s.Close()
	offer.Close()
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors of memory, %d before", after, before)
	}
	for { // the kernel needs a moment for sockets in transit to a process
		names, err := os.ReadFile("/proc/net/unix")
		if err != nil || ctx.Err() != nil {
			t.Fatalf("the socket's name is still there: %v", err)
		}
		if !strings.Contains(string(names), string(offer.Ticket()[:2*nameBytes])) {
			break
		}
		runtime.Gosched()
	}
	left, err := os.ReadDir("/dev/shm")
	if err != nil || len(left) > len(files) {
		t.Errorf("/dev/shm has %d files, %d before: %v", len(left), len(files), err)
	}
}
