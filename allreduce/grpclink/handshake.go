package grpclink

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"

	"rondo/allreduce"
	"rondo/allreduce/grpclink/framing"
)

// Seat is a worker's place in a ring of one generation of a job.
type Seat struct {
	Job        string
	Generation allreduce.Generation // at least 1
	Rank       allreduce.Rank       // place in this ring
	World      int                  // of this ring
	Nonce      string               // of the generation's plan; neighbours prove that they know it

	// Circle names the ring among the generation's rings. Ranks names the members of a ring with
	// only some of the generation's workers, in ring order; nil: each member's name is its place.
	Circle Circle
	Ranks  []allreduce.Rank
}

// Circle names one of the rings that a worker is in, in one generation.
type Circle string

// The rings of a generation.
const (
	CircleAll    Circle = ""       // all workers
	CircleHost   Circle = "host"   // the workers of one host
	CircleAcross Circle = "across" // one worker of each host
)

func circles() []Circle { return []Circle{CircleAll, CircleHost, CircleAcross} }

func (s Seat) validate() error {
	switch {
	case s.Job == "":
		return fmt.Errorf("ring link: no job")
	case s.Generation < 1:
		return fmt.Errorf("ring link: generation %d is not 1 or more", s.Generation)
	case s.World < 1 || s.World > allreduce.MaxWorld:
		return fmt.Errorf("ring link: world %d is not 1 to %d", s.World, allreduce.MaxWorld)
	case s.Rank < 0 || int(s.Rank) >= s.World:
		return fmt.Errorf("ring link: rank %d is not 0 to %d", s.Rank, s.World-1)
	case s.Ranks != nil && len(s.Ranks) != s.World:
		return fmt.Errorf("ring link: %d names for a ring of %d", len(s.Ranks), s.World)
	case !slices.Contains(circles(), s.Circle):
		return fmt.Errorf("ring link: there is no circle %q", s.Circle)
	}
	return nil
}

func (s Seat) peer(place allreduce.Rank, address string) allreduce.Peer {
	if s.Ranks != nil {
		place = s.Ranks[place]
	}
	return allreduce.Peer{Rank: place, Address: address}
}

// name returns this worker's rank as the others know it.
func (s Seat) name() allreduce.Rank { return s.peer(s.Rank, "").Rank }

func (s Seat) predecessor() allreduce.Rank {
	return (s.Rank + allreduce.Rank(s.World) - 1) % allreduce.Rank(s.World)
}

func (s Seat) successor() allreduce.Rank { return (s.Rank + 1) % allreduce.Rank(s.World) }

// hello is the metadata that each side sends when a stream opens: its seat, and the place that it
// expects the other to have.
type hello struct {
	Seat
	to     allreduce.Rank
	answer bool   // it is the successor's
	proof  string // that the sender knows the nonce; only of a hello that was received
}

// prove returns a proof that the sender of this hello knows the nonce.
func (h hello) prove(nonce string) string {
	mac := hmac.New(sha256.New, []byte(nonce))
	fmt.Fprintf(mac, "%q %d %d %d %d %q %t", h.Job, h.Generation, h.Rank, h.to, h.World, h.Circle,
		h.answer)
	return string(mac.Sum(nil))
}

// Metadata keys. A value may hold any bytes if its key ends in -bin.
const (
	keyFormat     = "rondo-format"
	keyJob        = "rondo-job-bin"
	keyGeneration = "rondo-generation"
	keyFrom       = "rondo-from-rank"
	keyTo         = "rondo-to-rank"
	keyWorld      = "rondo-world"
	keyCircle     = "rondo-circle" // absent for CircleAll
	keyProof      = "rondo-proof-bin"
	keyAbort      = "rondo-abort-bin"
)

// maxJobBytes is the longest job name in the handshake.
const maxJobBytes = 1 << 10

func (h hello) metadata() metadata.MD {
	md := metadata.Pairs(
		keyFormat, strconv.Itoa(framing.Version),
		keyJob, h.Job,
		keyGeneration, strconv.FormatUint(uint64(h.Generation), 10),
		keyFrom, strconv.Itoa(int(h.Rank)),
		keyTo, strconv.Itoa(int(h.to)),
		keyWorld, strconv.Itoa(h.World),
		keyProof, h.prove(h.Nonce),
	)
	if h.Circle != CircleAll {
		md.Set(keyCircle, string(h.Circle))
	}
	return md
}

func parseHello(md metadata.MD) (hello, error) {
	var h hello
	format, err := number(md, keyFormat)
	if err != nil {
		return h, err
	}
	if format != framing.Version {
		return h, fmt.Errorf("the neighbour speaks ring format %d, this worker %d",
			format, framing.Version)
	}
	if h.Job, err = one(md, keyJob); err != nil {
		return h, err
	}
	if h.proof, err = one(md, keyProof); err != nil {
		return h, err
	}
	if len(h.Job) > maxJobBytes {
		return h, fmt.Errorf("metadata %s has %d bytes, at most %d are allowed",
			keyJob, len(h.Job), maxJobBytes)
	}
	var values [4]uint64
	for i, key := range []string{keyGeneration, keyFrom, keyTo, keyWorld} {
		if values[i], err = number(md, key); err != nil {
			return h, err
		}
		if i > 0 && values[i] > allreduce.MaxWorld {
			return h, fmt.Errorf("metadata %s is %d, at most %d is allowed",
				key, values[i], allreduce.MaxWorld)
		}
	}
	h.Generation = allreduce.Generation(values[0])
	h.Rank, h.to = allreduce.Rank(values[1]), allreduce.Rank(values[2])
	h.World = int(values[3])
	if circle := md.Get(keyCircle); len(circle) > 0 {
		h.Circle = Circle(circle[0])
	}
	if !slices.Contains(circles(), h.Circle) {
		return h, fmt.Errorf("metadata %s: there is no circle %.40q", keyCircle, h.Circle)
	}
	return h, nil
}

func one(md metadata.MD, key string) (string, error) {
	values := md.Get(key)
	if len(values) != 1 {
		return "", fmt.Errorf("metadata %s has %d values, want 1", key, len(values))
	}
	return values[0], nil
}

func number(md metadata.MD, key string) (uint64, error) {
	value, err := one(md, key)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("metadata %s: %.40q is not a number", key, value)
	}
	return n, nil
}

// check compares a neighbour's hello with this worker's seat. from is the place that the neighbour
// must have.
func (s Seat) check(h hello, from allreduce.Rank) error {
	switch {
	case h.Job != s.Job:
		return fmt.Errorf("it is of job %q, this worker of job %q", h.Job, s.Job)
	case h.Generation != s.Generation:
		return fmt.Errorf("it is at generation %d, this worker at %d", h.Generation, s.Generation)
	case h.Circle != s.Circle:
		return fmt.Errorf("it is in the circle %q, this worker in %q", h.Circle, s.Circle)
	case h.World != s.World:
		return fmt.Errorf("it is in a ring of %d, this worker in one of %d", h.World, s.World)
	case h.Rank != from:
		return fmt.Errorf("it is rank %d, this worker's neighbour is rank %d", h.Rank, from)
	case h.to != s.Rank:
		return fmt.Errorf("it looks for rank %d, this worker is rank %d", h.to, s.Rank)
	case !hmac.Equal([]byte(h.proof), []byte(h.prove(s.Nonce))):
		return errors.New("it does not know the plan's nonce")
	}
	return nil
}

// maxReasonBytes is the longest reason of an abort on the wire.
const maxReasonBytes = 1 << 10

// shorten cuts a reason to maxReasonBytes, at a character boundary.
func shorten(reason string) string {
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	if len(reason) <= maxReasonBytes {
		return reason
	}
	end := maxReasonBytes - len("…")
	for !utf8.RuneStart(reason[end]) {
		end--
	}
	return reason[:end] + "…"
}
