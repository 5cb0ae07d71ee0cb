package kube

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An action is an operator's next change for a RondoJob.
type action string

const (
	leave   action = ""        // nothing
	begin   action = "begin"   // a new run: apply all objects
	mend    action = "mend"    // apply the objects that are missing
	scale   action = "scale"   // set the number of workers
	suspend action = "suspend" // suspend the workers, or let them go on
)

// conditionApplied says whether the cluster holds what the spec asks for. Its reasons follow.
const (
	conditionApplied = "Applied"

	reasonApplied   = "Applied"   // it does
	reasonInvalid   = "Invalid"   // the spec is wrong
	reasonConflict  = "Conflict"  // the job's name is taken
	reasonLeaving   = "Leaving"   // the objects of an earlier RondoJob are being deleted
	reasonImmutable = "Immutable" // a field was changed that a running job cannot change
	reasonFailed    = "Failed"    // the API server has refused a change
)

// A sight is a RondoJob and its job's objects at one moment.
type sight struct {
	wrong   error  // of the spec; nil: it can be submitted
	taken   string // an object that is somebody else's and has the job's name; empty: none
	leaving bool   // the job's objects are an earlier RondoJob's, and being deleted

	run     bool     // a run has been begun
	changed []string // fields that differ from those that the run was begun with
	there   bool     // the workers' Job exists
	begun   bool     // a worker of the run has run
	ended   bool

	workers, wanted       int  // of the Job, and of the spec; wanted 0: the run's
	suspended, suspending bool // the Job, and the spec
	queue                 string
	due                   bool // it is time to look for missing objects
}

// decide returns the next action for a RondoJob, and the condition Applied as it is before that.
func decide(s *sight) (action, metav1.Condition) {
	is := func(status metav1.ConditionStatus, reason, text string) metav1.Condition {
		return metav1.Condition{Type: conditionApplied, Status: status, Reason: reason,
			Message: text}
	}
	switch fresh := !s.run || !s.there && !s.ended || len(s.changed) > 0 && (s.ended || !s.begun); {
	case s.leaving:
		return leave, is(metav1.ConditionFalse, reasonLeaving,
			"the objects of an earlier RondoJob of this name are being deleted")
	case s.taken != "":
		return leave, is(metav1.ConditionFalse, reasonConflict, s.taken+" exists and is not this "+
			"RondoJob's: delete that job (rondo delete), or give this one another name")
	case s.wrong != nil:
		return s.keep(), is(metav1.ConditionFalse, reasonInvalid, s.wrong.Error())
	case fresh:
		return begin, is(metav1.ConditionFalse, reasonApplied,
			"the job's objects are being applied")
	case len(s.changed) > 0:
		return s.keep(), is(metav1.ConditionFalse, reasonImmutable, fmt.Sprintf("%s: changed "+
			"while the job runs, which goes on as it was begun. The change takes effect in the "+
			"next run, which begins when this one has ended (rondo stop)",
			strings.Join(s.changed, ", ")))
	}
	return s.keep(), is(metav1.ConditionTrue, reasonApplied, "")
}

// keep returns the action that keeps the present run as the spec has it.
func (s *sight) keep() action {
	switch {
	case !s.there || s.ended:
		return leave
	case s.wrong == nil && s.wanted != 0 && s.wanted != s.workers:
		return scale
	case s.suspended != s.suspending && s.queue == "": // Kueue suspends by itself
		return suspend
	case s.due:
		return mend
	}
	return leave
}
