package etcdstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rondo/cluster"
)

// TestPlanTooLarge: a plan that etcd, or its client, can never take ends the leader's work with the
// remedy. It was tried again for ever.
func TestPlanTooLarge(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	leading, err := open(t).Campaign(ctx, cluster.Leader{ID: "c", Address: "c:1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 200)
	for _, workers := range []int{8000, 20000} { // 1.7 MB and 4.3 MB
		plan := cluster.Plan{Generation: 1, Phase: cluster.Running, Rings: 1}
		for i := range workers {
			plan.Members = append(plan.Members, cluster.Member{ID: fmt.Sprint("w", i), Host: long})
			plan.LaneEnds = append(plan.LaneEnds, cluster.Lane(i+1))
		}
		err := leading.PutPlan(ctx, plan)
		if want := fmt.Sprintf("the plan of %d workers has", workers); err == nil ||
			!strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--max-request-bytes") || ctx.Err() != nil {
			t.Errorf("%d workers: %v", workers, err)
		}
	}
	if err := leading.Resign(ctx); err != nil {
		t.Error(err)
	}
}
