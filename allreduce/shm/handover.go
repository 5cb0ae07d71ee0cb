package shm

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// Ticket lets a receiver fetch the memory of an Offer. It has the abstract socket's name and a
// secret; the receiver proves one half of the secret and the sender the other.
type Ticket string

const (
	nameBytes   = 16
	secretBytes = 32
	ticketBytes = 2 * (nameBytes + secretBytes) // as hexadecimal digits

	// handoverTimeout limits the wait for the other end after they have connected.
	handoverTimeout = 2 * time.Second
)

// parse returns the name of the socket and the secret.
func (t Ticket) parse() (*net.UnixAddr, []byte, error) {
	secret, err := hex.DecodeString(string(t))
	if err != nil || len(t) != ticketBytes {
		return nil, nil, fmt.Errorf("%.20q is not a ticket for shared memory", string(t))
	}
	name := "@rondo-" + string(t[:2*nameBytes])
	return &net.UnixAddr{Name: name, Net: "unix"}, secret[nameBytes:], nil
}

// Offer is shared memory that waits for its receiver.
type Offer struct {
	ticket   Ticket
	secret   []byte
	listener *net.UnixListener
	taken    chan offered // receives the result once, also if no receiver came
}

type offered struct {
	sender *Sender
	err    error
}

// NewOffer listens for a receiver of the same host and user. The memory is created when it
// connects.
func NewOffer() (*Offer, error) {
	if !supported {
		return nil, errors.New("this system cannot seal memory; Linux can")
	}
	var random [nameBytes + secretBytes]byte
	rand.Read(random[:]) // it never fails
	o := &Offer{ticket: Ticket(hex.EncodeToString(random[:])), taken: make(chan offered, 1)}
	address, secret, err := o.ticket.parse()
	if err != nil {
		return nil, err
	}
	o.secret = secret
	if o.listener, err = net.ListenUnix("unix", address); err != nil {
		return nil, err
	}
	go o.serve()
	return o, nil
}

// Ticket returns the receiver's ticket.
func (o *Offer) Ticket() Ticket { return o.ticket }

// serve accepts connections until a receiver has the memory. A receiver may retry after a failed
// handover. After a successful one the offer ends.
func (o *Offer) serve() {
	defer o.listener.Close()
	failed := errors.New("no receiver has fetched the shared memory")
	for {
		conn, err := o.listener.AcceptUnix()
		if err != nil {
			o.taken <- offered{err: failed}
			return
		}
		sender, err := o.handOver(conn)
		if err == nil {
			o.taken <- offered{sender: sender}
			return
		}
		conn.Close()
		if !errors.Is(err, errStranger) {
			failed = err
		}
	}
}

// errStranger is the error of a connection without a right to the memory.
var errStranger = errors.New("it did not send the secret of the offer")

// handOver creates the memory and passes it to the process behind conn.
func (o *Offer) handOver(conn *net.UnixConn) (*Sender, error) {
	_ = conn.SetDeadline(time.Now().Add(handoverTimeout))
	if err := CheckUser(conn); err != nil {
		return nil, fmt.Errorf("%w: %w", errStranger, err)
	}
	var shown [secretBytes / 2]byte
	if _, err := io.ReadFull(conn, shown[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errStranger, err)
	}
	if subtle.ConstantTimeCompare(shown[:], o.secret[:len(shown)]) != 1 {
		return nil, errStranger
	}
	fd, err := create(memoryBytes)
	if err != nil {
		return nil, err
	}
	defer release(fd)
	memory, err := check(fd, memoryBytes)
	if err != nil {
		return nil, err
	}
	if err := send(conn, o.secret[len(shown):], fd); err != nil {
		unmap(memory)
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return &Sender{channel: channel{memory: memory, socket: conn}}, nil
}

// Wait returns the sending end of the memory that was handed over. The caller closes it.
func (o *Offer) Wait(ctx context.Context) (*Sender, error) {
	select {
	case t := <-o.taken:
		o.taken <- offered{err: errors.New("the shared memory was already handed over")}
		return t.sender, t.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close withdraws the offer and closes its memory, unless Wait has returned that.
func (o *Offer) Close() {
	o.listener.Close()
	if t := <-o.taken; t.sender != nil {
		t.sender.Close()
	}
}

// Take fetches the memory that a process of this host and user offers.
func Take(ctx context.Context, ticket Ticket) (*Receiver, error) {
	address, secret, err := ticket.parse()
	if err != nil {
		return nil, err
	}
	if !supported {
		return nil, errors.New("this system cannot seal memory; Linux can")
	}
	ctx, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	plain, err := new(net.Dialer).DialContext(ctx, "unix", address.Name)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errors.New("the two ends are not in the same network namespace of one host")
	}
	if err != nil {
		return nil, err
	}
	conn := plain.(*net.UnixConn)
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	memory, err := fetch(conn, secret)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("the shared memory was not handed over: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return &Receiver{channel: channel{memory: memory, socket: conn}}, nil
}

// fetch sends its half of the secret, and maps the descriptor that comes with the other half.
func fetch(conn *net.UnixConn, secret []byte) ([]byte, error) {
	if err := CheckUser(conn); err != nil {
		return nil, err
	}
	half := secretBytes / 2
	if _, err := conn.Write(secret[:half]); err != nil {
		return nil, err
	}
	var shown [secretBytes / 2]byte
	fd, err := receive(conn, shown[:])
	if err != nil {
		return nil, err
	}
	defer release(fd)
	if subtle.ConstantTimeCompare(shown[:], secret[half:]) != 1 {
		return nil, errors.New("the offering process did not send the secret")
	}
	return check(fd, memoryBytes)
}
