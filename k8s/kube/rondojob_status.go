package kube

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// rondoJobStatus is the status of a RondoJob: what `rondo status` shows.
type rondoJobStatus struct {
	ObservedGeneration int64    `json:"observedGeneration,omitempty"`
	Run                string   `json:"run,omitempty"` // a number with more digits than JSON's
	Phase              string   `json:"phase,omitempty"`
	Reason             string   `json:"reason,omitempty"`
	World              int64    `json:"world"` // workers in the ring
	Step               int64    `json:"step"`
	TotalSteps         int64    `json:"totalSteps,omitempty"`
	Epoch              int64    `json:"epoch,omitempty"`
	Loss               *float64 `json:"loss,omitempty"`
	Perplexity         *float64 `json:"perplexity,omitempty"`
	TokensPerSecond    *float64 `json:"tokensPerSecond,omitempty"`
	Checkpoint         string   `json:"checkpoint,omitempty"`
	CheckpointStep     int64    `json:"checkpointStep,omitempty"`

	Replicas int64  `json:"replicas"` // pods, of the subresource scale
	Selector string `json:"selector,omitempty"`

	TrainerStatus *trainerStatus     `json:"trainerStatus,omitempty"`
	Conditions    []metav1.Condition `json:"conditions,omitempty"`
}

// trainerStatus has the form of Kubeflow Trainer's TrainJobTrainerStatus (KEP-2779).
type trainerStatus struct {
	ProgressPercentage        *int32       `json:"progressPercentage,omitempty"`
	EstimatedRemainingSeconds *int32       `json:"estimatedRemainingSeconds,omitempty"`
	Metrics                   []metric     `json:"metrics,omitempty"`
	LastUpdatedTime           *metav1.Time `json:"lastUpdatedTime,omitempty"`
}

type metric struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Conditions of a RondoJob besides conditionApplied.
const (
	conditionRunning   = "Running"
	conditionSuspended = "Suspended"
	conditionComplete  = "Complete"
	conditionFailed    = "Failed"
)

// pendingStatus returns the status of a job of which nothing is known yet.
func pendingStatus(job string) rondoJobStatus {
	return rondoJobStatus{Phase: phasePending, Selector: selecting(job, Worker).LabelSelector}
}

// copy copies the job's own status. spec may be nil.
func (r *rondoJobStatus) copy(s *JobStatus, spec *rondov1.JobSpec) {
	r.Phase, r.Reason, r.World = s.Phase, s.Reason, int64(s.Ring)
	r.Step, r.TotalSteps, r.Epoch = s.Step, s.TotalSteps, s.Epoch
	r.Loss, r.Perplexity, r.TokensPerSecond = s.Loss, s.Perplexity, s.TokensPerSecond
	r.Checkpoint, r.CheckpointStep = s.Checkpoint, s.CheckpointStep
	r.TrainerStatus = trainerStatusOf(s, spec)
}

// trainerStatusOf returns nil before the first step. spec may be nil.
func trainerStatusOf(s *JobStatus, spec *rondov1.JobSpec) *trainerStatus {
	if s.Step == 0 || s.TotalSteps == 0 {
		return nil
	}
	percent := int32(min(100, s.Step*100/s.TotalSteps))
	t := &trainerStatus{ProgressPercentage: &percent}
	if spec != nil {
		s.Detail = cmp.Or(s.Detail, &Detail{})
		if s.foresee(spec); s.Detail.SecondsLeft != nil {
			left := int32(min(*s.Detail.SecondsLeft, math.MaxInt32))
			t.EstimatedRemainingSeconds = &left
		}
	}
	for _, given := range []struct {
		name  string
		value *float64
	}{{"loss", s.Loss}, {"perplexity", s.Perplexity}, {"tokens_per_second", s.TokensPerSecond}} {
		if given.value != nil {
			t.Metrics = append(t.Metrics, metric{given.name,
				strconv.FormatFloat(*given.value, 'f', -1, 64)})
		}
	}
	t.Metrics = append(t.Metrics, metric{"step", strconv.FormatInt(s.Step, 10)},
		metric{"epoch", strconv.FormatInt(s.Epoch, 10)})
	if s.Updated != nil {
		t.LastUpdatedTime = &metav1.Time{Time: s.Updated.UTC()}
	}
	return t
}

// setConditions sets the conditions that follow from the phase, and Applied. A condition keeps the
// time of its last change.
func (r *rondoJobStatus) setConditions(applied metav1.Condition, generation int64) {
	applied.ObservedGeneration = generation
	meta.SetStatusCondition(&r.Conditions, applied)
	for _, of := range []struct{ kind, phase string }{
		{conditionRunning, telemetry.PhaseRunning}, {conditionSuspended, phaseSuspended},
		{conditionComplete, telemetry.PhaseEnded}, {conditionFailed, telemetry.PhaseFailed},
	} {
		c := metav1.Condition{Type: of.kind, Status: metav1.ConditionFalse,
			Reason: reasonOfPhase(r.Phase), ObservedGeneration: generation}
		if r.Phase == of.phase {
			c.Status, c.Message = metav1.ConditionTrue, r.Reason
		}
		meta.SetStatusCondition(&r.Conditions, c)
	}
}

// reasonOfPhase returns a phase in the form of a condition's reason.
func reasonOfPhase(phase string) string {
	return strings.ToUpper(phase[:1]) + phase[1:]
}
