package k8s

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEtcd: a cluster's id is its namespace's own, no lookup outlasts a question of one member to
// another, members that are unready together all stay, and where a disk goes with its host two
// members share none.
func TestEtcd(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []metav1.Object) {
		if overlay == "external-etcd" {
			return
		}
		budget := only[*policyv1.PodDisruptionBudget](t, objects, "rondo-etcd").Spec
		if p := budget.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.IfHealthyBudget {
			t.Errorf("unready members may go: %v", p)
		}
		pod := only[*appsv1.StatefulSet](t, objects, "rondo-etcd").Spec.Template.Spec
		etcd := pod.Containers[0]
		if !slices.Contains(etcd.Args, "--token=$(NAMESPACE)") || !slices.ContainsFunc(etcd.Env,
			func(e corev1.EnvVar) bool {
				return e.Name == "NAMESPACE" &&
					e.ValueFrom.FieldRef.FieldPath == "metadata.namespace"
			}) {
			t.Errorf("the token is not the namespace: %v with %v", etcd.Args, etcd.Env)
		}
		if pod.DNSConfig == nil || !slices.ContainsFunc(pod.DNSConfig.Options,
			func(o corev1.PodDNSConfigOption) bool {
				return o.Name == "timeout" && *o.Value == "1"
			}) {
			t.Errorf("a lost answer of the DNS takes longer than a second: %v", pod.DNSConfig)
		}
		spread := pod.TopologySpreadConstraints[0]
		taints := corev1.NodeInclusionPolicyIgnore
		if spread.NodeTaintsPolicy != nil {
			taints = *spread.NodeTaintsPolicy
		}
		if overlay == "ephemeral-etcd" && (spread.WhenUnsatisfiable != corev1.DoNotSchedule ||
			taints != corev1.NodeInclusionPolicyHonor) {
			t.Errorf("members are spread by %s, taints %s", spread.WhenUnsatisfiable, taints)
		}
	})
}
