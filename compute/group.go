package compute

import "context"

// Peer identifies a device to others. Devices can form a group if they have the same Host and
// Library, and different Units.
type Peer struct {
	Unit    string // the hardware: a GPU's UUID
	Host    string // the host, within which it reaches others without a network
	Library string // the library that sums, with its version: "NCCL 2.23.4"
}

// Grouper is a Device that can sum with others of its kind, also in other processes, without a copy
// through host memory.
type Grouper interface {
	Device
	// Peer identifies the device. Its error is the reason why the device can join no group.
	Peer() (Peer, error)
	// NewGroupID makes a group's id for Join. One member calls it and sends it to the others.
	NewGroupID() ([]byte, error)
	// Join joins the group of an id and size, and waits for the other members until the deadline
	// that ctx must have.
	Join(ctx context.Context, id []byte, rank, world int) (Group, error)
}

// Group is a device's membership. One goroutine at a time uses it and its device.
type Group interface {
	// AllReduce replaces x by its sum over the members, the same bits on all, after the work queued
	// so far, and waits for it. All members must ask for the same sums in the same order. A lost
	// member is not detected: the others wait until the deadline that ctx must have. After an error
	// the contents of x, and the results of later calls, are undefined; the device still works.
	AllReduce(ctx context.Context, x []float32) error
	// Close leaves the group. The others must have their sums by then: a sum still under way fails
	// or is wrong.
	Close()
}
