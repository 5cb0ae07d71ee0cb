// Package shm passes messages between two processes on one host through shared memory: an ordered
// queue of a few slots with one sender and one receiver.
//
// The memory is an anonymous file (memfd_create), sealed against growing and shrinking and passed
// over an abstract unix socket (SCM_RIGHTS). So no file system holds it, and the kernel frees it
// when the processes die. The receiver gets the socket's name and a secret, a [Ticket], on a
// connection that both sides trust. A process of the same user that can connect to the name and
// receive the memory runs on the same kernel as the sender. The socket stays open: a byte on it
// wakes a waiting end, and its end means that the other process has ended.
//
// Neither end trusts what the other can write: it reads counts and lengths once, and checks them
// against the memory's fixed layout. A receiver's caller must read each payload once.
//
// It knows nothing of rings, and does not say why an end has gone. It imports allreduce only, for
// the size of a chunk. It runs on Linux; on other systems nothing can be offered.
package shm
