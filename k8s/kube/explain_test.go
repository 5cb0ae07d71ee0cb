package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What Kubernetes' API server says, word for word, and what a person is told.
func TestExplain(t *testing.T) {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := func(why string) error {
		return apierrors.NewForbidden(pods, "song-worker-0-abcde", errors.New(why))
	}
	conflict := apierrors.NewApplyConflict([]metav1.StatusCause{{
		Type: metav1.CauseTypeFieldManagerConflict, Field: ".spec.replicas",
		Message: `conflict with "kubectl-scale" using apps/v1`,
	}}, "Apply failed with 1 conflict")
	immutable := apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "song-worker",
		field.ErrorList{field.Invalid(field.NewPath("spec", "template"),
			map[string]string{"a": strings.Repeat("PodTemplateSpec{", 200)}, "field is immutable")})
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"rights": {apierrors.NewForbidden(jobs, "song-worker", errors.New(`User "jane" cannot `+
			`patch `+
			`resource "jobs" in API group "batch" in the namespace "music"`)),
			[]string{`User "jane" cannot patch resource "jobs"`, `in the namespace "music"`,
				"you may not do that", "--context"}},
		"rights everywhere": {forbidden(`User "jane" cannot list resource "nodes" in API group ` +
			`"" ` +
			`at the cluster scope`), []string{"at the cluster scope", "you may not"}},
		"no namespace": {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"},
			"music"),
			[]string{"there is no namespace music", "kubectl create namespace music"}},
		"no object": {apierrors.NewNotFound(jobs, "song-worker"),
			[]string{"there is no job song-worker"}},
		"no resource": {apierrors.NewGenericServerResponse(404, "get", jobs, "", "", 0, true),
			[]string{"no such resource", "Kubernetes 1.31"}},
		"credentials": {apierrors.NewUnauthorized("Unauthorized"),
			[]string{"does not know who you are", "log in again"}},
		"conflict": {conflict, []string{`.spec.replicas: conflict with "kubectl-scale"`,
			"rondo delete"}},
		"changed": {apierrors.NewConflict(jobs, "song-worker", errors.New("the object has been "+
			"modified")), []string{"changed meanwhile", "try again"}},
		"immutable": {immutable, []string{"Job song-worker is refused: spec.template: field is " +
			"immutable", "another --job"}},
		"quota": {forbidden("exceeded quota: small, requested: pods=1, used: pods=3, limited: " +
			"pods=3"), []string{"exceeded quota: small, requested: pods=1", "--workers"}},
		"quota needs limits": {forbidden("failed quota: small: must specify limits.cpu for: " +
			"worker"),
			[]string{"quota: small", "limits.cpu for: worker", "LimitRange"}},
		"pod security": {forbidden(`violates PodSecurity "restricted:latest": runAsNonRoot != ` +
			`true ` +
			`(pod must set securityContext.runAsNonRoot=true)`),
			[]string{`PodSecurity "restricted:latest"`, "runAsNonRoot != true",
				"own manifests unchanged"}},
		"account": {forbidden(`error looking up service account music/song-worker: ` +
			`serviceaccount "song-worker" not found`),
			[]string{`serviceaccount "song-worker" not found`}},
		"terminating": {forbidden("unable to create new content in namespace music because it is " +
			"being terminated"), []string{"namespace music", "wait until the namespace is gone"}},
		"escalation": {apierrors.NewForbidden(schema.GroupResource{Resource: "roles"}, "x",
			errors.New(`user "jane" (groups=["a"]) is attempting to grant RBAC permissions not `+
				`currently held: {APIGroups:["batch"]}`)), []string{"rights that you do not have"}},
		"webhook": {apierrors.NewBadRequest(`admission webhook "validate.example" denied the ` +
			`request: image must come from registry.example`), []string{"validate.example",
			"image must come from registry.example", "ask who runs that policy"}},
		"webhook is away": {apierrors.NewInternalError(errors.New(`failed calling webhook ` +
			`"mutate.example": failed to call webhook: Post "https://mutate.svc:443/": context ` +
			`deadline exceeded`)), []string{"mutate.example", "context deadline",
			"have that webhook repaired"}},
		"policy": {forbidden(`ValidatingAdmissionPolicy 'labels' with binding 'all' denied ` +
			`request: ` +
			`the label team is needed`), []string{"'labels'", "team is needed"}},
		"busy": {apierrors.NewTooManyRequestsError("slow down"), []string{"try again in a " +
			"minute"}},
		"timeout": {fmt.Errorf("get: %w", context.DeadlineExceeded), []string{"does not answer " +
			"in"}},
		"kind": {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "jobset.x-k8s.io",
			Kind: "JobSet"}, SearchedVersions: []string{"v1alpha2"}},
			[]string{"no kind JobSet", "leave out --jobset"}},
		"other": {errors.New("strange"), []string{"strange"}},
	} {
		told := Explain(c.err, "applying it")
		for _, want := range append(c.want, "applying it: ") {
			if !strings.Contains(told.Error(), want) {
				t.Errorf("%s: %q is not in: %v", name, want, told)
			}
		}
		if !errors.Is(told, c.err) {
			t.Errorf("%s: the cause is lost", name)
		}
		if strings.Contains(told.Error(), "\n") || len(told.Error()) > maxTextShown+200 {
			t.Errorf("%s: not one short line: %v", name, told)
		}
		if again := Explain(told, "more"); again.Error() != told.Error() && name != "other" {
			t.Errorf("%s: explained twice: %v", name, again)
		}
	}
	if Explain(nil, "x") != nil || !errors.Is(Explain(context.Canceled, "x"), context.Canceled) {
		t.Error("what is no error, or an interruption, is explained")
	}
}
