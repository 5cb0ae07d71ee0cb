package kube

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// render returns the manifests of a submission, and an object of them by kind/name.
func render(t *testing.T, flags string) (*Manifests, func(named string) map[string]any) {
	t.Helper()
	s, err := submission(t, append(strings.Fields(flags), "--checkpoint-dir=pvc://models")...)
	check(t, err)
	m, err := Render(t.Context(), s, "music")
	check(t, err)
	return m, func(named string) map[string]any {
		for _, o := range slices.Concat(m.Shared, m.Job) {
			if nameOf(o) == named {
				return o.Object
			}
		}
		return nil
	}
}

// etcdOf returns the value of ETCD in the first container of an object's pods.
func etcdOf(t *testing.T, object map[string]any) string {
	t.Helper()
	all, _, err := unstructured.NestedSlice(object, "spec", "template", "spec", "containers")
	check(t, err)
	for _, env := range all[0].(map[string]any)["env"].([]any) {
		if e := env.(map[string]any); e["name"] == "ETCD" {
			return e["value"].(string)
		}
	}
	return ""
}

// TestSmallJobsAreSmall: below eight workers a job has one coordinator and etcd one member, unless
// a person says otherwise, or the member's data would go with its pod.
func TestSmallJobsAreSmall(t *testing.T) {
	for flags, want := range map[string]struct{ coordinators, members int64 }{
		"--workers=2":                         {1, 1},
		"--workers=7":                         {1, 1},
		"--workers=8":                         {2, 3},
		"--workers=2 --ha":                    {2, 3},
		"--workers=8 --ha=false":              {1, 1},
		"--etcd-storage=ephemeral":            {1, 3},
		"--etcd-storage=ephemeral --ha=false": {1, 1},
		"--workers=4 --jobset --queue=team":   {1, 1},
		"--workers=2 --ha --etcd-storage=1Gi": {2, 3},
		"--workers=2 --gpus-per-worker=1":     {1, 1},
	} {
		_, object := render(t, flags)
		coordinators, _, _ := unstructured.NestedInt64(object("deployment/rondo-coordinator"),
			"spec", "replicas")
		members, _, _ := unstructured.NestedInt64(object("statefulset/rondo-etcd"), "spec",
			"replicas")
		if coordinators != want.coordinators || members != want.members {
			t.Errorf("%s: %d coordinators and %d members, want %+v", flags, coordinators, members,
				want)
		}
		addresses := etcdOf(t, object("deployment/rondo-coordinator"))
		if got := int64(len(strings.Split(addresses, ","))); got != members {
			t.Errorf("%s: %d members at %s", flags, members, addresses)
		}
		for name, pods := range map[string]int64{"rondo-coordinator": coordinators,
			etcdName: members} {
			if has := object("poddisruptionbudget/"+name) != nil; has != (pods > 1) {
				t.Errorf("%s: %d of %s, with a disruption budget: %v", flags, pods, name, has)
			}
		}
		if seconds, _, _ := unstructured.NestedInt64(workersOfAny(object), "spec",
			"ttlSecondsAfterFinished"); seconds != 3600 {
			t.Errorf("%s: the Job stays for %d s", flags, seconds)
		}
	}
}

func workersOfAny(object func(string) map[string]any) map[string]any {
	if set := object("jobset/rondo-worker"); set != nil {
		return set
	}
	return object("job/rondo-worker")
}

func TestTimeToLive(t *testing.T) {
	for flag, want := range map[string]any{"--ttl-after-finished=never": nil,
		"--ttl-after-finished=0s": int64(0), "--ttl-after-finished=90m": int64(5400)} {
		_, object := render(t, flag)
		got, _, err := unstructured.NestedFieldNoCopy(object("job/rondo-worker"), "spec",
			"ttlSecondsAfterFinished")
		if check(t, err); got != want {
			t.Errorf("%s: %v", flag, got)
		}
	}
	for _, flag := range []string{"--ttl-after-finished=-1s", "--ttl-after-finished=soon",
		"--ttl-after-finished=9000h", "--ha=maybe"} {
		if _, err := submission(t, flag); err == nil {
			t.Errorf("%s is taken", flag)
		}
	}
}

// TestSmallJobOfALargeEtcd: a job's pods are told of the members that there are.
func TestSmallJobOfALargeEtcd(t *testing.T) {
	s := serveAPI(t)
	_, err := s.submit(t, "--job=large", "--ha", "--checkpoint-dir=pvc://models")
	check(t, err)
	s.startEtcd()
	_, err = s.submit(t, "--job=song", "--checkpoint-dir=pvc://models")
	check(t, err)
	for _, named := range []string{"deployments/song-coordinator", "jobs/song-worker"} {
		if got := etcdOf(t, s.object(t, named).Object); strings.Count(got, ",") != 2 {
			t.Errorf("%s reaches etcd at %s", named, got)
		}
	}
}
