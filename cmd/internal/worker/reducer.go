package worker

import (
	"context"
	"time"

	"rondo/allreduce"
	"rondo/train"
)

// reducer is the ring as train sees it.
type reducer struct {
	*allreduce.Ring
	last *sum // that was begun; nil: none, or it has been waited for
}

// sum is an all-reduce that goes on beside other things.
type sum struct {
	done chan struct{} // closed when it has ended, after err is set
	err  error
}

// Wait implements train.Pending.
func (s *sum) Wait(context.Context) error { // the sum's own context ends it
	<-s.done
	return s.err
}

// Start implements train.Reducer. The goroutine ends when the ring is left, if not before.
func (r *reducer) Start(ctx context.Context, buf []float32) (train.Pending, error) {
	before, s := r.last, &sum{done: make(chan struct{})}
	r.last = s
	go func() {
		defer close(s.done)
		if before != nil {
			<-before.done
		}
		s.err = r.Ring.AllReduce(ctx, buf)
	}()
	return s, nil
}

// settle waits for what was begun.
func (r *reducer) settle() {
	if r.last != nil {
		<-r.last.done
		r.last = nil
	}
}

func (r *reducer) AllReduce(ctx context.Context, buf []float32) error {
	r.settle()
	return r.Ring.AllReduce(ctx, buf)
}

func (r *reducer) AllGather(ctx context.Context, buf []float32, ends []int) error {
	r.settle()
	return r.Ring.AllGather(ctx, buf, ends)
}

func (r *reducer) AllReduceCarry(ctx context.Context, buf, out, in []float32) error {
	r.settle()
	return r.Ring.AllReduceCarry(ctx, buf, allreduce.Carry{Out: out, In: in})
}

func (r *reducer) Timing() (sending, waiting time.Duration) {
	t := r.Ring.Timing()
	return t.Sending, t.Waiting
}
