package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
	"rondo/job/jobspec"
)

// The values of --topology that this file compares.
const (
	topologyFlat = "flat"
	topologyAuto = "auto"
)

// form joins the plan's ring of all ranks.
func (s *seat) form(ctx context.Context) (err error) {
	all := make([]allreduce.Rank, len(s.plan.Members))
	for i := range all {
		all[i] = allreduce.Rank(i)
	}
	s.ring, err = s.formRing(ctx, grpclink.CircleAll, all)
	return err
}

// formRing joins the plan's ring of the given ranks.
func (s *seat) formRing(
	ctx context.Context, circle grpclink.Circle, ranks []allreduce.Rank,
) (*allreduce.Ring, error) {
	addresses := make([]string, len(ranks))
	for i, rank := range ranks {
		addresses[i] = s.plan.Members[rank].Address
	}
	seat := grpclink.Seat{Job: s.spec.Job, Generation: allreduce.Generation(s.plan.Generation),
		Rank: allreduce.Rank(slices.Index(ranks, allreduce.Rank(s.rank))), World: len(ranks),
		Circle: circle, Ranks: ranks, Nonce: s.plan.Nonce}
	links, err := s.connect(ctx, seat, addresses, s.silence())
	if err != nil {
		return nil, err
	}
	if s.spec.Inject != "" {
		links = s.engine.faults.wrap(links)
	}
	config := allreduce.Config{Rank: seat.Rank, World: seat.World, Ranks: ranks,
		Generation: seat.Generation, ChunkTimeout: s.spec.ChunkTimeout.AsDuration(),
		StepTimeout: s.spec.StepTimeout.AsDuration()}
	switch circle {
	case grpclink.CircleHost:
		config = config.WithinHost()
	case grpclink.CircleAcross:
		config = config.AcrossHosts()
	}
	return allreduce.New(config, links)
}

// silence is how long no connection to a member may open until it counts as lost. A newcomer's
// network may need longer than that of a member that has trained.
func (s *seat) silence() time.Duration {
	d := s.spec.ChunkTimeout.AsDuration()
	if newcomers := s.plan.Rings <= 1 || len(s.plan.Last) > 0; newcomers {
		return d
	}
	return min(silenceTime, d)
}

// breakOff breaks all of this rank's rings.
func (s *seat) breakOff(err error) {
	s.ring.Break(err)
	if s.tiers != nil {
		s.tiers.breakOff(err)
	}
}

// leaveRings leaves all of this rank's rings.
func (s *seat) leaveRings() (err error) {
	if s.tiers != nil {
		err = s.tiers.close()
	}
	return errors.Join(err, s.ring.Close())
}

// tiers are this rank's rings of a hierarchy: within its host and across the hosts. The ring of all
// ranks exists besides.
type tiers struct {
	*allreduce.Hierarchy
	rings  []*allreduce.Ring
	unbind func()
}

// openTiers joins the rings of a hierarchy. It returns nil if the job's gradients are not summed by
// one. The plan determines this, so all ranks decide alike. When one ring breaks, all break.
func (s *seat) openTiers(ctx context.Context) (_ *tiers, err error) {
	if s.spec.Topology == topologyFlat || len(s.plan.Members) == 1 ||
		!jobspec.Hierarchical(s.spec) {
		return nil, nil
	}
	hosts := make([]string, len(s.plan.Members))
	for i, m := range s.plan.Members {
		hosts[i] = m.Host
	}
	layout := allreduce.NewLayout(hosts, allreduce.Rank(s.rank))
	if s.spec.Topology == topologyAuto && !layout.Pays() {
		return nil, nil
	}
	t := &tiers{}
	ctx, release := s.ringContext(ctx)
	defer func() {
		release()
		if err == nil {
			return
		}
		if broken := s.ring.Err(); broken != nil { // it may be the missing neighbour's reason
			err = broken
		}
		err = errors.Join(err, t.close())
	}()
	host, err := t.join(ctx, s, grpclink.CircleHost, layout.Host)
	if err != nil {
		return nil, fmt.Errorf("the ring of host %s: %w", hosts[s.rank], err)
	}
	var across *allreduce.Ring
	if layout.Across != nil {
		across, err = t.join(ctx, s, grpclink.CircleAcross, layout.Across)
		if err != nil {
			return nil, fmt.Errorf("the ring across the hosts: %w", err)
		}
	}
	if t.Hierarchy, err = allreduce.NewHierarchy(layout, host, across); err != nil {
		return nil, err
	}
	t.unbind = allreduce.Bind(append([]*allreduce.Ring{s.ring}, t.rings...)...)
	s.log.Debug("gradients are summed within hosts first", "generation", s.plan.Generation,
		"host", fmt.Sprint(layout.Host), "across", fmt.Sprint(layout.Across))
	if s.rank == 0 {
		s.notice(ctx, fmt.Sprintf("gradients are summed within hosts first: %d workers in %d parts",
			len(hosts), layout.Columns))
	}
	return t, nil
}

// ringContext returns a context that ends when the ring of all ranks breaks. release ends its
// watch.
func (s *seat) ringContext(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-s.ring.Broken():
			cancel(s.ring.Err())
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

// join joins one of the hierarchy's rings.
func (t *tiers) join(
	ctx context.Context, s *seat, circle grpclink.Circle, ranks []allreduce.Rank,
) (*allreduce.Ring, error) {
	ring, err := s.formRing(ctx, circle, ranks)
	if err == nil {
		t.rings = append(t.rings, ring)
	}
	return ring, err
}

// breakOff breaks the hierarchy's rings.
func (t *tiers) breakOff(err error) {
	for _, ring := range t.rings {
		ring.Break(err)
	}
}

// close leaves the hierarchy's rings.
func (t *tiers) close() (err error) {
	for _, ring := range t.rings {
		err = errors.Join(err, ring.Close())
	}
	if t.Hierarchy != nil {
		t.unbind()
		t.Hierarchy.Close()
	}
	return err
}
