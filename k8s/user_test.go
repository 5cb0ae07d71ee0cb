package k8s

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/kustomize/api/krusty"
)

// resourceOf is how rights name a kind.
func resourceOf(kind string) string {
	if kind, y := strings.CutSuffix(kind, "y"); y {
		return strings.ToLower(kind) + "ies"
	}
	return strings.ToLower(kind) + "s"
}

// The role may create, change and remove all rendered objects. It gives the observer no rights that
// it does not have itself.
func TestUser(t *testing.T) {
	text, err := os.ReadFile("user.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user, ok := decode(t, text).(*rbacv1.Role)
	if !ok {
		t.Fatal("user.yaml is no Role")
	}
	mayApply(t, user)
}

// The operator may do the same: some clusters let only those set owners who may delete the object.
func TestOperator(t *testing.T) {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory(t), "/operator")
	if err != nil {
		t.Fatal(err)
	}
	roles := 0
	for _, r := range rendered.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetKind() == "CustomResourceDefinition" {
			continue // client-go does not know this kind
		}
		if role, is := decode(t, text).(*rbacv1.Role); is {
			mayApply(t, role)
			roles++
		}
	}
	if roles != 1 {
		t.Errorf("the operator has %d roles", roles)
	}
}

// mayApply fails unless a role may create, change and remove all rendered objects, make the Job or
// JobSet their owner, and give the observer its rights.
func mayApply(t *testing.T, user *rbacv1.Role) {
	t.Helper()
	may := func(group, resource, verb string) bool {
		return slices.ContainsFunc(user.Rules, func(r rbacv1.PolicyRule) bool {
			return len(r.ResourceNames) == 0 && slices.Contains(r.APIGroups, group) &&
				slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
		})
	}
	tree := memory(t)
	for _, overlay := range overlays(t) {
		rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(tree,
			"/overlays/"+overlay)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rendered.Resources() {
			kind := schema.FromAPIVersionAndKind(r.GetApiVersion(), r.GetKind())
			for _, verb := range []string{"get", "create", "patch", "delete"} {
				if !may(kind.Group, resourceOf(kind.Kind), verb) {
					t.Errorf("%s: nobody may %s %s", overlay, verb, kind)
				}
			}
		}
	}
	if !may("batch", "jobs/finalizers", "update") ||
		!may("jobset.x-k8s.io", "jobsets/finalizers", "update") {
		t.Error("nobody may make the Job or JobSet an owner that waits for what it owns")
	}
	eachOverlay(t, func(t *testing.T, _ string, objects []metav1.Object) {
		for _, rule := range only[*rbacv1.Role](t, objects, "rondo-coordinator").Rules {
			for _, verb := range rule.Verbs {
				if !may(rule.APIGroups[0], rule.Resources[0], verb) {
					t.Errorf("nobody may give the observer %s", verb)
				}
			}
		}
	})
}
