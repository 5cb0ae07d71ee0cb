package rpc

import (
	"context"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// Stop implements the service.
func (s *Server) Stop(ctx context.Context, r *rondov1.StopRequest) (*rondov1.StopResponse, error) {
	t, leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	reason := r.Reason
	if reason == "" {
		reason = "a person asked for it"
	}
	if err := s.deliver(ctx, t, cluster.StopRequested{Reason: reason}); err != nil {
		return nil, err
	}
	return answer(&rondov1.StopResponse{}, s.await(ctx, t, func(p cluster.Plan) (bool, error) {
		return p.Phase == cluster.Stopping || p.Phase == cluster.Ended, nil
	}))
}

// Scale implements the service.
func (s *Server) Scale(ctx context.Context, r *rondov1.ScaleRequest) (
	*rondov1.ScaleResponse, error) {
	t, leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	workers := int(min(max(r.Workers, 0), math.MaxInt32))
	if err := s.job.CheckScale(workers); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%v", err)
	}
	select {
	case t.scaling <- struct{}{}:
		defer func() { <-t.scaling }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	scaled := func(p cluster.Plan) (bool, error) {
		if p.Phase == cluster.Stopping || p.Phase == cluster.Ended {
			return false, status.Errorf(codes.FailedPrecondition,
				"the job's ring does not change any more: it is %v (%s)", p.Phase, p.Reason)
		}
		return p.Limit == workers, nil
	}
	t.mu.Lock()
	done, err := scaled(t.plan)
	t.mu.Unlock()
	if done || err != nil {
		return answer(&rondov1.ScaleResponse{}, err)
	}
	if err := s.deliver(ctx, t, cluster.ScaleRequested{Workers: workers}); err != nil {
		return nil, err
	}
	if err := s.await(ctx, t, scaled); err != nil {
		return nil, err
	}
	s.publish(t, &rondov1.Event{Kind: &rondov1.Event_Scale{
		Scale: &rondov1.ScaleEvent{Workers: int64(workers)},
	}}, false)
	return &rondov1.ScaleResponse{}, nil
}

// await returns when a stored plan satisfies wanted, or wanted returns an error.
func (s *Server) await(ctx context.Context, t *term,
	wanted func(cluster.Plan) (bool, error)) error {
	for {
		t.mu.Lock()
		plan, planned := t.plan, t.planned
		t.mu.Unlock()
		if done, err := wanted(plan); done || err != nil {
			return err
		}
		select {
		case <-planned:
		case <-t.over:
			return s.notLeading(ctx)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func answer[T any](response *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return response, nil
}

// Stop asks the leader to stop the job, and returns when the stop is stored.
func (c *Client) Stop(ctx context.Context, reason string) error {
	return c.ask(ctx, "stopping the job", func(ctx context.Context,
		leader rondov1.CoordinatorClient) error {
		_, err := leader.Stop(ctx, &rondov1.StopRequest{Reason: reason}, grpc.WaitForReady(true))
		return err
	})
}

// Scale sets the most workers in the ring, and returns when that is stored. A number outside of the
// job's bounds is a RefusedError that names them.
func (c *Client) Scale(ctx context.Context, workers int) error {
	return c.ask(ctx, "scaling the job", func(ctx context.Context,
		leader rondov1.CoordinatorClient) error {
		_, err := leader.Scale(ctx, &rondov1.ScaleRequest{Workers: int64(workers)},
			grpc.WaitForReady(true))
		return err
	})
}

// ask sends a request to the present leader until it is answered.
func (c *Client) ask(ctx context.Context, what string,
	request func(context.Context, rondov1.CoordinatorClient) error) error {
	return c.retry(ctx, what, func(func()) error {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		limited, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		return request(limited, rondov1.NewCoordinatorClient(conn))
	})
}
