package compute

import "context"

// Peer is what a device is to others that it may form a group with: they have the same Host and the
// same Library, and each a Unit of its own.
type Peer struct {
	Unit    string // which piece of hardware it is: a GPU's UUID
	Host    string // where it is, and where it can reach others without a network
	Library string // what sums, with its version: "NCCL 2.23.4"
}

// Grouper is a Device with memory of its own that can sum with others of its kind, those of other
// processes included, without a way through the host's memory.
type Grouper interface {
	Device
	// Peer says what the device is to others; the error is why it can be in no group.
	Peer() (Peer, error)
	// NewGroupID makes the name of a group, for Join: one member does, and tells the others.
	NewGroupID() ([]byte, error)
	// Join makes the device one of so many in the group of this name, and waits for the others
	// until ctx ends, which has a deadline.
	Join(ctx context.Context, id []byte, rank, world int) (Group, error)
}

// Group is a device's place among others. It is used as its device is, by one goroutine at a time.
type Group interface {
	// AllReduce replaces x by its sum over the members, the same bits on all, as soon as the work
	// asked for so far is done, and waits for it. All members ask for the same sums in the same
	// order. A member that is gone is not missed: the others wait until ctx ends, which has a
	// deadline. After an error x may be anything, and so it is with every later call; the device
	// computes as before.
	AllReduce(ctx context.Context, x []float32) error
	// Close leaves the group. The others must have their sums by then: those that still wait get
	// none, or a wrong one.
	Close()
}
