package kube

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDiagnoseNobodyLeads: without coordinators a job goes on only until its next ring.
func TestDiagnoseNobodyLeads(t *testing.T) {
	unready := func(since int64) func(*patient) {
		return func(p *patient) {
			p.coordinator.Status.Conditions = []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse,
				LastTransitionTime: metav1.Unix(now-since, 0)}}
		}
	}
	try(t, map[string]symptom{
		"deleted": {func(p *patient) { p.coordinator = nil }, []string{
			"deployment/song-coordinator: it is gone, so nobody leads the job",
			"rondo delete --job song -n music --force, and submit the job again"}, true},
		"not to be seen": {func(p *patient) {
			p.coordinator, p.refused = nil, []string{"deployments"}
		}, []string{"you may not read its deployments"}, false},
		"being deleted": {func(p *patient) {
			p.coordinator, p.job.DeletionTimestamp = nil, &metav1.Time{Time: time.Unix(now, 0)}
			p.job.Finalizers = []string{"foregroundDeletion"}
		}, nil, false},
		"scaled to nothing": {func(p *patient) { p.coordinator.Spec.Replicas = new(int32) },
			[]string{"kubectl -n music scale deployment song-coordinator --replicas 2"}, true},
		"starting": {unready(20), nil, false},
		"not ready": {unready(40), []string{"none of its pods is ready",
			"rondo logs --job song -n music --component coordinator"}, false},
	})
}

// TestDiagnoseLostNodes tells a node that does not answer from a pod that is not ready.
func TestDiagnoseLostNodes(t *testing.T) {
	unready := func(containers bool) func(*patient) {
		return func(p *patient) {
			for _, pod := range p.pods {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
					Status: corev1.ConditionFalse}}
				pod.Status.ContainerStatuses[0].Ready = containers
			}
		}
	}
	try(t, map[string]symptom{
		"lost": {unready(true), []string{
			"node/a: it does not answer, and has 2 pods of the job",
			"kubectl delete node a"}, false},
		"not ready": {unready(false), nil, false},
	})
}
