// Package shm passes messages from one process to another of the same host through memory that
// both have mapped: a queue of a few slots, in order, one sender and one receiver.
//
// The memory is an anonymous file (memfd_create) that is sealed against growing and shrinking,
// and handed over on an abstract unix socket (SCM_RIGHTS), so that no file system has anything of
// it and the kernel takes it back from processes that are killed. The socket's name and a secret
// come to the receiver by a way that both trust, a [Ticket]; whoever can connect to the name with
// the same user's rights, and be handed memory, shares a kernel with the sender. The socket stays
// open: a byte on it wakes an end that waits, and its end is the end of the process behind it.
//
// Neither end believes what the other can write: counts and lengths are read once and checked
// against the memory's fixed layout, and a receiver's caller reads each payload once.
//
// It knows nothing of rings, and does not say why an end has gone. It imports allreduce, for the
// size of a chunk, and runs on Linux; elsewhere nothing can be offered.
package shm
