package coordinator

import (
	"reflect"
	"testing"

	"rondo/internal/jobspec"
)

// What membership decides by must come from the spec: a field of cluster.Job that is left out here
// would have no effect, and nothing else would fail.
func TestJobOf(t *testing.T) {
	spec := jobspec.Default()
	spec.MaxWorkers, spec.RingOrder = 7, "spread"
	job := reflect.ValueOf(JobOf(spec))
	for i := range job.NumField() {
		if job.Field(i).IsZero() {
			t.Errorf("Job.%s is not set from the spec", job.Type().Field(i).Name)
		}
	}
	if spec.RingOrder = "adjacent"; JobOf(spec).Spread {
		t.Error("--ring-order adjacent spreads the ring")
	}
}
