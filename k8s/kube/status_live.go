package kube

import (
	"context"
	"net"

	"rondo/cluster"
)

// Live adds to a job's status what its etcd says now: who leads, and each worker's rank and lanes.
func (c *Cluster) Live(ctx context.Context, s *JobStatus) error {
	job, err := c.Job(ctx, s.Job)
	if err != nil {
		return err
	}
	way, err := c.Way(ctx, job)
	if err != nil {
		return err
	}
	defer way.Close()
	store, err := way.Store(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	view, err := store.View(ctx)
	if err != nil {
		return err
	}
	s.live(view)
	return nil
}

// live fits what is stored to the pods, by their addresses.
func (s *JobStatus) live(view cluster.View) {
	plan := view.Plan
	s.Generation, s.Ring = int64(plan.Generation), len(plan.Members)
	if plan.Reason != "" {
		s.Reason = plan.Reason
	}
	if plan.Phase == cluster.Ended {
		s.Ring = 0
	}
	ip := func(address string) string {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return address
		}
		return host
	}
	for _, pod := range s.Detail.Coordinators {
		if pod.IP != "" && pod.IP == ip(view.Leader.Address) {
			s.Detail.Leader = pod.Pod
		}
	}
	for rank, member := range plan.Members {
		for i := range s.Detail.Workers {
			pod := &s.Detail.Workers[i]
			if pod.IP == "" || pod.IP != ip(member.Address) {
				continue
			}
			from, to := plan.Lanes(cluster.Rank(rank))
			pod.Rank, pod.Lanes = &rank, []int{int(from), int(to)}
		}
	}
}
