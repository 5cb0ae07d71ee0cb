package kube

import (
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	policyapply "k8s.io/client-go/applyconfigurations/policy/v1"
)

// A drain may always take one worker, whatever the job says of how few it goes on with.
func TestADrainMayTakeOne(t *testing.T) {
	for flags, want := range map[string]int32{
		"--workers=1": 0, "--workers=2": 1, "--workers=8": 4, "--workers=4 --min-workers=3": 3,
		"--workers=4 --min-workers=4": 3,
	} {
		s, err := submission(t, append(strings.Fields(flags), "--checkpoint-dir=pvc://models")...)
		check(t, err)
		m, err := Render(t.Context(), s, "music")
		check(t, err)
		for _, object := range m.Job {
			var budget policyv1.PodDisruptionBudget
			if object.GetName() != "rondo-worker" || object.GetKind() != "PodDisruptionBudget" {
				continue
			}
			check(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &budget))
			if got := budget.Spec.MinAvailable.IntVal; got != want {
				t.Errorf("%s: a drain leaves %d, want %d", flags, got, want)
			}
		}
		noted := strings.Contains(strings.Join(m.Notes, "\n"), "--min-workers is all of")
		if all := m.Spec.MinWorkers == m.Spec.Workers; noted != all {
			t.Errorf("%s: said that the job pauses: %v", flags, noted)
		}
	}
}

// The budget follows the job's size, and nothing else of it changes.
func TestScaleSetsTheBudget(t *testing.T) {
	job := someJob(3, nil)
	job.Spec.Suspend = pointer(true)
	c := clusterOf(append(someSpec(), job)...)
	budgets := c.Client.PolicyV1().PodDisruptionBudgets("here")
	_, err := budgets.Apply(t.Context(), policyapply.PodDisruptionBudget("book-worker", "here").
		WithSpec(policyapply.PodDisruptionBudgetSpec().
			WithMinAvailable(intstr.FromInt32(2)).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(job.Labels))),
		metav1.ApplyOptions{FieldManager: manager})
	check(t, err)
	for _, size := range []struct{ workers, least int }{{2, 1}, {6, 2}} {
		check(t, c.Scale(t.Context(), "book", Scale{Workers: size.workers, Fits: fits,
			Say: func(said string) {
				if strings.HasPrefix(said, "note:") {
					t.Error(said)
				}
			}}))
		budget, err := budgets.Get(t.Context(), "book-worker", metav1.GetOptions{})
		check(t, err)
		if got := budget.Spec.MinAvailable.IntValue(); got != size.least ||
			budget.Spec.Selector.MatchLabels[labelJob] != "book" {
			t.Errorf("%d workers: %+v", size.workers, budget.Spec)
		}
		if n := len(budget.ManagedFields); n != 1 {
			t.Errorf("%d owners of the budget's fields: submit would find a conflict", n)
		}
	}
}
