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

// The values of flags that this file decides by.
const (
	intraHostAuto = "auto"
	intraHostNCCL = "nccl"
	linkAuto      = "auto" // of --link
)

// card is what a worker says of itself before the ranks decide what sums the gradient.
type card struct {
	Peer   compute.Peer
	Cannot string // why it can be in no group; empty: it can
}

// card is this worker's.
func (s *session) card() card {
	if s.groupFault != "" {
		return card{Cannot: s.groupFault}
	}
	grouper, ok := s.device.(compute.Grouper)
	if !ok {
		return card{Cannot: fmt.Sprintf("NCCL sums between GPUs, and its device is %s",
			s.device.Name())}
	}
	peer, err := grouper.Peer()
	if err != nil {
		return card{Cannot: clipped(fmt.Sprintf("NCCL cannot be used: %v: install it, or put its "+
			"folder into LD_LIBRARY_PATH", err))}
	}
	return card{Peer: peer}
}

// refusal is why there is no group: a rank that cannot be in one.
type refusal struct {
	rank int
	why  string
}

// misfit is the first rank that cannot be in a group with those before it; nil: all can.
func misfit(cards []card) *refusal {
	first := cards[0].Peer
	for rank, c := range cards {
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
		for other, o := range cards[:rank] {
			if o.Peer.Unit == c.Peer.Unit {
				return &refusal{rank, fmt.Sprintf("it computes on the same GPU as rank %d, %s: "+
					"give each worker a GPU of its own", other, c.Peer.Unit)}
			}
		}
	}
	return nil
}

// groupError is that there is no group although the job demands one. All ranks have it; the one
// that it is about fails.
type groupError struct {
	rank int
	text string
}

func (e *groupError) Error() string { return e.text }

// openGroup has the ranks decide what sums the gradient, and returns this rank's place among the
// devices that do; nil: the ring sums. All decide alike, for each hears what all say.
func (s *session) openGroup(ctx context.Context) (compute.Group, error) {
	how := s.spec.IntraHost
	if how == intraHostAuto && s.spec.Link != linkAuto && s.spec.Link != "" {
		return nil, nil // whoever says what the ring's links are made of wants the ring
	}
	if len(s.plan.Members) == 1 || how != intraHostAuto && how != intraHostNCCL ||
		s.ringSums() {
		return nil, nil
	}
	own := s.card()
	cards, err := tellAll(ctx, s, own)
	if err != nil {
		return nil, err
	}
	var group compute.Group
	refused := misfit(cards)
	if refused == nil {
		group, refused, err = s.joinGroup(ctx, s.device.(compute.Grouper))
	}
	switch {
	case err != nil:
		return nil, err
	case refused != nil:
		return nil, s.withoutGroup(ctx, own, refused)
	}
	s.log.Debug("gradients are summed between the GPUs", "by", own.Peer.Library)
	if s.rank == 0 {
		s.notice(ctx, "gradients are summed between the GPUs, by "+own.Peer.Library)
	}
	return bound{group, s}, nil
}

// withoutGroup tells why the ring is to sum, which is an error where the job demands a group.
func (s *session) withoutGroup(ctx context.Context, own card, refused *refusal) error {
	m := s.plan.Members[refused.rank]
	why := fmt.Sprintf("rank %d (%s): %s", refused.rank, m.Place(), refused.why)
	if s.spec.IntraHost == intraHostNCCL {
		return &groupError{rank: refused.rank, text: fmt.Sprintf("--intra-host nccl: %s; with "+
			"--intra-host auto the ring sums where NCCL cannot", why)}
	}
	s.log.Debug("gradients are summed around the ring", "reason", why)
	if s.rank == 0 && own.Cannot == "" { // who has a GPU and NCCL may expect otherwise
		s.notice(ctx, "gradients are summed around the ring, and not by NCCL: "+why)
	}
	return nil
}

// outcome is what came of a rank's part in making a group.
type outcome struct {
	ID     []byte // the group's; of rank 0 alone
	Failed string // why nothing did
	Unmet  bool   // it has only waited for the others in vain
}

// failed notes an error.
func (o outcome) failed(err error) outcome {
	if err != nil {
		o.Failed = clipped(err.Error())
		_, o.Unmet = errors.AsType[*sum.UnmetError](err)
	}
	return o
}

// clipped cuts what is to fit into a message, where JSON may take six bytes for one.
func clipped(text string) string {
	const most = 1000
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// firstFailed is the first rank whose own part failed; if there is none, the first that was left
// waiting.
func firstFailed(all []outcome) (unmet *refusal) {
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

// joinGroup makes a group of the ranks' devices.
func (s *session) joinGroup(
	ctx context.Context, device compute.Grouper,
) (group compute.Group, refused *refusal, err error) {
	var own outcome
	if s.rank == 0 {
		id, err := device.NewGroupID()
		own = outcome{ID: id}.failed(err)
	}
	all, err := tellAll(ctx, s, own)
	if err != nil {
		return nil, nil, err
	}
	if refused = firstFailed(all); refused != nil {
		return nil, refused, nil
	}
	group, failed := s.joinAndSum(ctx, device, all[0].ID)
	all, err = tellAll(ctx, s, outcome{}.failed(failed))
	if err == nil {
		refused = firstFailed(all)
	}
	if broken, is := errors.AsType[*compute.DeviceError](failed); is { // the ring is no way out
		err = errors.Join(err, broken)
	}
	if group != nil && (err != nil || refused != nil) {
		err, group = errors.Join(err, freed(group.Close)), nil
	}
	return group, refused, err
}

// joinAndSum joins a group and sums once, of the gradient's length, for what NCCL prepares only
// then.
func (s *session) joinAndSum(
	ctx context.Context, device compute.Grouper, id []byte,
) (group compute.Group, err error) {
	defer compute.Catch(&err)
	err = s.whileRing(ctx, "the GPUs have not come together", func(ctx context.Context) error {
		joined, err := device.Join(ctx, id, int(s.rank), len(s.plan.Members))
		if err != nil {
			return err
		}
		// It may hold anything: to join a ring makes it zeros.
		if err := joined.AllReduce(ctx, s.engine.model.GradientsWithTail()); err != nil {
			return errors.Join(err, freed(joined.Close))
		}
		group = joined
		return nil
	})
	return group, err
}

// bound is a group whose waits end with the ring.
type bound struct {
	compute.Group
	session *session
}

// AllReduce sums, unless the ring breaks meanwhile. The worker remembers if its own part fails,
// whatever becomes of the ring.
func (b bound) AllReduce(ctx context.Context, x []float32) error {
	err := b.session.whileRing(ctx, "the GPUs' sum has not come", func(ctx context.Context) error {
		return b.Group.AllReduce(ctx, x)
	})
	if _, unmet := errors.AsType[*sum.UnmetError](err); err != nil && !unmet {
		b.session.groupFault = clipped(fmt.Sprintf("its part in an earlier group failed: %v", err))
	}
	return err
}

// whileRing has f wait for the other ranks until the ring breaks, and at most for half as long as
// they wait for each other in the ring: a rank whose part fails goes there at once, and those that
// wait for it here still find it there. An error after that is a *sum.UnmetError.
func (s *session) whileRing(
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

// leaveGroup ends this rank's place in a group, if it has one.
func (s *session) leaveGroup() {
	if s.group == nil {
		return
	}
	if err := freed(s.group.Close); err != nil {
		s.log.Debug("leaving the group of GPUs", "error", err)
	}
	s.group = nil
}

// sumByRing is what comes of a group that has failed in a ring that is sound: the ring sums from
// now on. It is false where the job demands a group, and a rank, whose part failed, is to leave.
func (s *session) sumByRing(ctx context.Context, failed *sum.GroupError) bool {
	s.leaveGroup()
	if failed.Faulty > 0 && s.spec.IntraHost == intraHostNCCL {
		return false
	}
	if failed.Own != nil || failed.Faulty == 0 && s.rank == 0 {
		s.notice(ctx, fmt.Sprintf("%v; the ring sums from now on", failed))
	}
	return true
}

// maxTold is how long a message of tellAll may be, in bytes.
const maxTold = 1 << 14

// tellAll gives every rank what each has to say, in JSON, whose bytes travel as the bits of floats:
// first how many there are, and then they themselves.
func tellAll[T any](ctx context.Context, s *session, own T) ([]T, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("telling the ranks: %w", err)
	}
	if len(text) > maxTold {
		panic(fmt.Sprintf("worker: %d bytes to tell, and at most %d may be", len(text), maxTold))
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
		if !(n >= 0 && n <= maxTold) { // a NaN is neither
			return nil, fmt.Errorf("rank %d tells %v bytes, and may %d", rank, n, maxTold)
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
		var told []byte
		for _, v := range wire[begin:end] {
			told = binary.LittleEndian.AppendUint32(told, math.Float32bits(v))
		}
		if err := json.Unmarshal(told[:int(lengths[rank])], &all[rank]); err != nil {
			return nil, fmt.Errorf("hearing rank %d: %w", rank, err)
		}
		begin = end
	}
	return all, nil
}
