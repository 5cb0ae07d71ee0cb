//go:build cuda

package cuda

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"rondo/compute"
	"rondo/compute/cuda/driver"
)

var _ compute.Grouper = (*Device)(nil)

// NCCL is the version of the NCCL that this process would sum with, and the file that it is in; the
// error is why there is none.
func NCCL() (version, library string, err error) {
	n, err := driver.OpenNCCL()
	if err != nil {
		return "", "", err
	}
	defer n.Close()
	return n.Version(), n.Library(), nil
}

// openNCCL opens NCCL, when it is first needed.
func (d *Device) openNCCL() (err error) {
	if d.nccl == nil {
		d.nccl, err = driver.OpenNCCL()
	}
	return err
}

// Peer describes this GPU's host, container and NCCL.
func (d *Device) Peer() (compute.Peer, error) {
	if err := d.openNCCL(); err != nil {
		return compute.Peer{}, err
	}
	host, err := hostName()
	if err != nil {
		return compute.Peer{}, fmt.Errorf("which host this is: %w", err)
	}
	unit, library := d.queue.info.UUID, "NCCL "+d.nccl.Version()
	return compute.Peer{Unit: unit, Host: host, Library: library}, nil
}

// hostName differs between hosts, and between containers that do not share a host name and
// /dev/shm. NCCL decides by the same whether GPUs, or host memory, can be reached without a
// network.
func hostName() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	name, err := os.Hostname()
	if err != nil {
		return "", err
	}
	var shared syscall.Stat_t
	if err := syscall.Stat("/dev/shm", &shared); err != nil {
		return "", fmt.Errorf("/dev/shm: %w", err)
	}
	return fmt.Sprintf("%s %s %d", strings.TrimSpace(string(boot)), name, shared.Dev), nil
}

// NewGroupID makes the name of a group, and has NCCL listen for its members.
func (d *Device) NewGroupID() ([]byte, error) {
	if err := d.openNCCL(); err != nil {
		return nil, err
	}
	return d.nccl.NewID()
}

// ncclGroup is a GPU's membership of a group. Members leave by abort, even after success, because
// it needs nothing of the other members, who may be gone. NVIDIA wants all members of a host to
// abort (NVIDIA/nccl, issue 863), since one may free what another still uses. They do, each when it
// learns that the ring has broken or ended, but not at the same moment.
type ncclGroup struct {
	device *Device
	comm   *driver.Comm
}

// Join makes the GPU a member of a group.
func (d *Device) Join(ctx context.Context, id []byte, rank, world int) (compute.Group, error) {
	if err := d.openNCCL(); err != nil {
		return nil, err
	}
	comm, err := d.queue.context.Join(d.nccl, id, rank, world)
	if driver.Broken(err) {
		d.queue.check("joining a group", err)
	}
	if err != nil {
		return nil, err
	}
	g := &ncclGroup{d, comm}
	d.groups[g] = struct{}{}
	if err := g.until(ctx, func() error { return comm.Settle(ctx) }); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// until runs f. If ctx ends before f does, or if f fails, it leaves the group, which ends f's wait.
func (g *ncclGroup) until(ctx context.Context, f func() error) error {
	stop := context.AfterFunc(ctx, g.comm.Abort)
	defer stop()
	err := f()
	ended := !stop()
	if err == nil && !ended {
		return nil
	}
	g.leave()
	if ended {
		return context.Cause(ctx)
	}
	return err
}

// leave leaves the group, and waits until that is done. If that does not come to an end, the device
// is broken; nothing else that NCCL says then changes anything.
func (g *ncclGroup) leave() {
	g.comm.Abort()
	if err := g.comm.Left(); driver.Broken(err) {
		g.device.queue.check("leaving a group", err)
	}
}

// AllReduce sums on the GPUs, in the stream. NCCL's kernel ends when the group is left, as if it
// had summed: that it has is certain only if the group is still there when the kernel is over.
func (g *ncclGroup) AllReduce(ctx context.Context, x []float32) error {
	if len(x) == 0 {
		return nil
	}
	const doing = "summing between GPUs"
	q := &g.device.queue
	q.notRecording(doing)
	return g.until(ctx, func() error {
		if err := g.comm.Settle(ctx); err != nil {
			return err
		}
		if err := g.comm.Sum(q.stream, at(x), len(x)); err != nil {
			return err
		}
		if err := g.comm.Settle(ctx); err != nil {
			return err
		}
		limit := q.patience
		if deadline, ok := ctx.Deadline(); ok {
			limit += max(0, time.Until(deadline))
		}
		q.check(doing, q.fence.Record(q.stream))
		q.check(doing, q.fence.Wait(limit))
		return g.comm.Settle(ctx)
	})
}

// Close leaves the group.
func (g *ncclGroup) Close() {
	d := g.device
	if _, ok := d.groups[g]; !ok {
		return
	}
	delete(d.groups, g)
	if !d.queue.broken {
		g.leave()
	}
}
