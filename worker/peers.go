package worker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"rondo/compute"
	"rondo/sum"
)

// The flag values that this file compares.
const (
	intraHostAuto = "auto"
	intraHostNCCL = "nccl"
	linkAuto      = "auto" // of --link
)

// candidate says whether a rank can be in a group of GPUs. The ranks exchange them before they
// decide what sums the gradient.
type candidate struct {
	Peer   compute.Peer
	Cannot string // why it cannot; empty: it can
}

// gpuGroup sums the gradient between the GPUs of a ring's ranks.
type gpuGroup struct {
	*seat
	group compute.Group // nil: tiers or the ring sum
}

// candidate returns this worker as a candidate.
func (g *gpuGroup) candidate() candidate {
	if g.groupFault != "" {
		return candidate{Cannot: g.groupFault}
	}
	grouper, ok := g.device.(compute.Grouper)
	if !ok {
		return candidate{Cannot: fmt.Sprintf("NCCL sums between GPUs, and its device is %s",
			g.device.Name())}
	}
	peer, err := grouper.Peer()
	if err != nil {
		return candidate{Cannot: truncated(fmt.Sprintf("NCCL cannot be used: %v: install it, or "+
			"put its folder into LD_LIBRARY_PATH", err))}
	}
	return candidate{Peer: peer}
}

// refusal names a rank that prevents a group, and why.
type refusal struct {
	rank int
	why  string
}

// firstUnfit returns the first rank that cannot be in a group with the ranks before it, or nil.
func firstUnfit(candidates []candidate) *refusal {
	first := candidates[0].Peer
	for rank, c := range candidates {
		switch {
		case c.Cannot != "":
			return &refusal{rank, c.Cannot}
		case c.Peer.Host != first.Host:
			return &refusal{rank, "it is on another host than rank 0, or in a container that " +
				"does not share the host's name and /dev/shm with it"}
		case c.Peer.Library != first.Library:
			return &refusal{rank, fmt.Sprintf("it has %s, and rank 0 %s: install the same "+
				"version", c.Peer.Library, first.Library)}
		}
		for other, o := range candidates[:rank] {
			if o.Peer.Unit == c.Peer.Unit {
				return &refusal{rank, fmt.Sprintf("it computes on the same GPU as rank %d, %s: "+
					"give each worker a GPU of its own", other, c.Peer.Unit)}
			}
		}
	}
	return nil
}

// groupError says that there is no group although the job requires one. All ranks return it; the
// rank that it names fails.
type groupError struct {
	rank int
	text string
}

func (e *groupError) Error() string { return e.text }

// open lets the ranks decide what sums the gradient. It joins a group of GPUs unless the ring sums.
// All ranks decide alike, because all see the same candidates.
func (g *gpuGroup) open(ctx context.Context) error {
	how := g.spec.IntraHost
	if how == intraHostAuto && g.spec.Link != linkAuto && g.spec.Link != "" {
		return nil // an explicit --link asks for the ring
	}
	if len(g.plan.Members) == 1 || how != intraHostAuto && how != intraHostNCCL ||
		ringSums(g.spec) {
		return nil
	}
	own := g.candidate()
	candidates, err := allGatherJSON(ctx, g.seat, own)
	if err != nil {
		return err
	}
	var group compute.Group
	refused := firstUnfit(candidates)
	if refused == nil {
		group, refused, err = g.join(ctx, g.device.(compute.Grouper))
	}
	switch {
	case err != nil:
		return err
	case refused != nil:
		return g.without(ctx, own, refused)
	}
	g.log.Debug("gradients are summed between the GPUs", "by", own.Peer.Library)
	if g.rank == 0 {
		g.notice(ctx, "gradients are summed between the GPUs, by "+own.Peer.Library)
	}
	g.group = ringGroup{group, g.seat}
	return nil
}

// without reports why the ring sums. If the job requires a group, it returns an error.
func (g *gpuGroup) without(ctx context.Context, own candidate, refused *refusal) error {
	m := g.plan.Members[refused.rank]
	why := fmt.Sprintf("rank %d (%s): %s", refused.rank, m.Place(), refused.why)
	if g.spec.IntraHost == intraHostNCCL {
		return &groupError{rank: refused.rank, text: fmt.Sprintf("--intra-host nccl: %s; with "+
			"--intra-host auto the ring sums where NCCL cannot", why)}
	}
	g.log.Debug("gradients are summed around the ring", "reason", why)
	if g.rank == 0 && own.Cannot == "" { // a user with a GPU and NCCL may expect NCCL
		g.notice(ctx, "gradients are summed around the ring, and not by NCCL: "+why)
	}
	return nil
}

// joinResult is the result of a rank's part in making a group.
type joinResult struct {
	ID     []byte // of the group; set by rank 0 only
	Failed string // why the rank's part failed; empty: it succeeded
	Unmet  bool   // it only waited for the others in vain
}

// failed records an error.
func (o joinResult) failed(err error) joinResult {
	if err != nil {
		o.Failed = truncated(err.Error())
		_, o.Unmet = errors.AsType[*sum.UnmetError](err)
	}
	return o
}

// truncated truncates a text for a message. JSON may take six bytes for one of its bytes.
func truncated(text string) string {
	const most = 1000
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// firstFailed returns the first rank whose own part failed. If there is none, it returns the first
// rank that waited in vain.
func firstFailed(all []joinResult) (unmet *refusal) {
	for rank, o := range all {
		switch {
		case o.Failed == "":
		case !o.Unmet:
			return &refusal{rank, o.Failed}
		case unmet == nil:
			unmet = &refusal{rank, o.Failed}
		}
	}
	return unmet
}

// join makes a group of the ranks' devices.
func (g *gpuGroup) join(
	ctx context.Context, device compute.Grouper,
) (group compute.Group, refused *refusal, err error) {
	var own joinResult
	if g.rank == 0 {
		id, err := device.NewGroupID()
		own = joinResult{ID: id}.failed(err)
	}
	all, err := allGatherJSON(ctx, g.seat, own)
	if err != nil {
		return nil, nil, err
	}
	if refused = firstFailed(all); refused != nil {
		return nil, refused, nil
	}
	group, failed := g.joinAndSum(ctx, device, all[0].ID)
	all, err = allGatherJSON(ctx, g.seat, joinResult{}.failed(failed))
	if err == nil {
		refused = firstFailed(all)
	}
	// The ring cannot replace a failed device.
	if broken, is := errors.AsType[*compute.DeviceError](failed); is {
		err = errors.Join(err, broken)
	}
	if group != nil && (err != nil || refused != nil) {
		err, group = errors.Join(err, tryFree(group.Close)), nil
	}
	return group, refused, err
}

// joinAndSum joins a group and sums once with the gradient's length, because NCCL prepares some
// resources only at the first sum.
func (g *gpuGroup) joinAndSum(
	ctx context.Context, device compute.Grouper, id []byte,
) (group compute.Group, err error) {
	defer compute.Catch(&err)
	const late = "the GPUs have not come together"
	err = g.untilRingBreaks(ctx, late, func(ctx context.Context) error {
		joined, err := device.Join(ctx, id, int(g.rank), len(g.plan.Members))
		if err != nil {
			return err
		}
		// The gradient's content is not needed: joining a ring sets it to zero.
		if err := joined.AllReduce(ctx, g.engine.task.Gradients()); err != nil {
			return errors.Join(err, tryFree(joined.Close))
		}
		group = joined
		return nil
	})
	return group, err
}

// ringGroup is a group whose waits end when the ring breaks.
type ringGroup struct {
	compute.Group
	*seat
}

// AllReduce sums, unless the ring breaks. If this rank's own part fails, the worker records it in
// groupFault, so that later rings do without this device.
func (b ringGroup) AllReduce(ctx context.Context, x []float32) error {
	const late = "the GPUs' sum has not come"
	err := b.untilRingBreaks(ctx, late, func(ctx context.Context) error {
		return b.Group.AllReduce(ctx, x)
	})
	if _, unmet := errors.AsType[*sum.UnmetError](err); err != nil && !unmet {
		b.groupFault = truncated(fmt.Sprintf("its part in an earlier group failed: %v",
			err))
	}
	return err
}

// untilRingBreaks runs f, which waits for other ranks. The wait ends when the ring breaks, or after
// half of the time that ranks wait for each other in the ring. So if one rank's part fails, it
// waits in the ring long enough for the others to leave f. If the wait ended f, the error is a
// *sum.UnmetError.
func (s *seat) untilRingBreaks(
	ctx context.Context, late string, f func(context.Context) error,
) error {
	limit := s.spec.StepTimeout.AsDuration() / 2
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s within %v, half of "+
		"--step-timeout", late, limit))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-s.ring.Broken():
			end(s.ring.Err())
		case <-ctx.Done():
		}
	})
	defer watching.Wait()
	defer end(nil)
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		return &sum.UnmetError{Err: err}
	}
	return err
}

// leave closes this rank's place in a group, if it has one.
func (g *gpuGroup) leave() {
	if g.group == nil {
		return
	}
	if err := tryFree(g.group.Close); err != nil {
		g.log.Debug("leaving the group of GPUs", "error", err)
	}
	g.group = nil
}

// giveUp handles a group that failed in a sound ring: from now on the ring sums. It returns
// false if the job requires a group and some rank's part failed; that rank must leave.
func (g *gpuGroup) giveUp(ctx context.Context, failed *sum.GroupError) bool {
	g.leave()
	if failed.Faulty > 0 && g.spec.IntraHost == intraHostNCCL {
		return false
	}
	if failed.Own != nil || failed.Faulty == 0 && g.rank == 0 {
		g.notice(ctx, fmt.Sprintf("%v; the ring sums from now on", failed))
	}
	return true
}

// maxGatherBytes is the largest message of allGatherJSON in bytes.
const maxGatherBytes = 1 << 14

// allGatherJSON is an all-gather of one value per rank, as JSON. The JSON's bytes travel as the
// bits of floats, after an all-gather of their lengths.
func allGatherJSON[T any](ctx context.Context, s *seat, own T) ([]T, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("gather among the ranks: %w", err)
	}
	if len(text) > maxGatherBytes {
		panic(fmt.Sprintf("worker: %d bytes to gather, above the limit of %d", len(text),
			maxGatherBytes))
	}
	world := len(s.plan.Members)
	lengths, ends := make([]float32, world), make([]int, world)
	for rank := range ends {
		ends[rank] = rank + 1
	}
	lengths[s.rank] = float32(len(text))
	if err := s.ring.AllGather(ctx, lengths, ends); err != nil {
		return nil, err
	}
	const size = 4 // bytes of a float
	total := 0
	for rank, n := range lengths {
		if !(n >= 0 && n <= maxGatherBytes) { // also refuses NaN
			return nil, fmt.Errorf("rank %d sends %v bytes to gather, above the limit of %d", rank,
				n, maxGatherBytes)
		}
		total += (int(n) + size - 1) / size
		ends[rank] = total
	}
	wire := make([]float32, total)
	text = append(text, make([]byte, size)...)
	begin := ends[s.rank] - (int(lengths[s.rank])+size-1)/size
	for i := range wire[begin:ends[s.rank]] {
		wire[begin+i] = math.Float32frombits(binary.LittleEndian.Uint32(text[size*i:]))
	}
	if err := s.ring.AllGather(ctx, wire, ends); err != nil {
		return nil, err
	}
	all := make([]T, world)
	begin = 0
	for rank, end := range ends {
		var received []byte
		for _, v := range wire[begin:end] {
			received = binary.LittleEndian.AppendUint32(received, math.Float32bits(v))
		}
		if err := json.Unmarshal(received[:int(lengths[rank])], &all[rank]); err != nil {
			return nil, fmt.Errorf("gather from rank %d: %w", rank, err)
		}
		begin = end
	}
	return all, nil
}
