package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// An apiServer keeps objects as an API server does, as far as commands can tell: discovery, apply,
// create, get, list by label, merge patch and delete. It merges nothing but owners: an apply
// replaces.
type apiServer struct {
	*Cluster

	mu       sync.Mutex
	objects  map[string]map[string]any // by path
	requests []string                  // that change something: "PATCH job/song-worker"
	made     int                       // objects so far
	refuse   func(request string) *apierrors.StatusError
	denied   string               // resource that the user may not create
	ownedBy  map[string]types.UID // by path and field manager
	held     string               // what the path of an object ends with that outlasts its deletion
}

// resources of the server: kinds by group/version and resource. Of the custom ones it has JobSet
// and RondoJob.
func serverResources() map[string]map[string]string {
	return map[string]map[string]string{
		"v1": {"configmaps": "ConfigMap", "services": "Service", "pods": "Pod",
			"serviceaccounts": "ServiceAccount", "events": "Event", "namespaces": "Namespace",
			"secrets":                "Secret",
			"persistentvolumeclaims": "PersistentVolumeClaim"},
		"apps/v1":              {"deployments": "Deployment", "statefulsets": "StatefulSet"},
		"batch/v1":             {"jobs": "Job"},
		"policy/v1":            {"poddisruptionbudgets": "PodDisruptionBudget"},
		"networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
		"rbac.authorization.k8s.io/v1": {"roles": "Role",
			"rolebindings": "RoleBinding"},
		"jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
		"rondo.dev/v1alpha1":       {"rondojobs": "RondoJob"},
	}
}

// serveAPI starts one whose namespace is music.
func serveAPI(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}, ownedBy: map[string]types.UID{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	cluster, err := newCluster(&rest.Config{Host: server.URL,
		RateLimiter:   flowcontrol.NewFakeAlwaysRateLimiter(),
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, "music", "test")
	check(t, err)
	s.Cluster, cluster.named = cluster, true
	s.put("/api/v1/namespaces/music", map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "music"}})
	return s
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, err := s.answer(r)
	if err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(err.ErrStatus.Code))
		status := err.ErrStatus
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// answer does what a request asks for.
func (s *apiServer) answer(r *http.Request) (any, *apierrors.StatusError) {
	path := r.URL.Path
	if listed := discovery(path); listed != nil {
		return listed, nil
	}
	if strings.HasSuffix(path, "/selfsubjectaccessreviews") {
		body, _ := io.ReadAll(r.Body)
		return map[string]any{"apiVersion": "authorization.k8s.io/v1",
			"kind": "SelfSubjectAccessReview", "status": map[string]any{"allowed": s.denied == "" ||
				!strings.Contains(string(body), `"resource":"`+s.denied+`"`)}}, nil
	}
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
	at := slices.Index(parts, "namespaces")
	if at < 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, path)
	}
	rest := parts[at:]
	if len(rest) > 2 {
		if s.objects["/api/v1/namespaces/"+rest[1]] == nil && r.Method != http.MethodGet {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, rest[1])
		}
		rest = rest[2:]
	}
	if len(rest) == 1 && r.Method == http.MethodGet {
		version := strings.Join(parts[:at], "/")
		return s.list(path, r.URL.Query().Get("labelSelector"), version,
			serverResources()[version][rest[0]]+"List"), nil
	}
	group := schema.GroupResource{Resource: rest[0]}
	if at > 1 {
		group.Group = parts[0]
	}
	body, _ := io.ReadAll(r.Body)
	object := map[string]any{}
	_ = utiljson.Unmarshal(body, &object) // whole numbers as int64
	if len(rest) == 1 {                   // a creation
		path += "/" + name(object)
		rest = append(rest, name(object))
	}
	if r.Method != http.MethodGet {
		request := fmt.Sprintf("%s %s/%s", r.Method, rest[0], rest[1])
		if s.refuse != nil {
			if err := s.refuse(request); err != nil {
				return nil, err
			}
		}
		if ownersOnly(r) {
			request += " owners"
		}
		if dry := r.URL.Query().Get("dryRun"); dry != "" {
			request += " dryRun=" + dry
		}
		s.requests = append(s.requests, request)
	}
	return s.do(r, path, object, apierrors.NewNotFound(group, rest[1]))
}

// ownersOnly reports whether a request applies owners as a field manager of their own.
func ownersOnly(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Query().Get("fieldManager"), manager+"-") &&
		r.Header.Get("Content-Type") == string(types.ApplyPatchType)
}

func name(object map[string]any) string {
	return (&unstructured.Unstructured{Object: object}).GetName()
}

func (s *apiServer) do(
	r *http.Request, path string, object map[string]any, missing *apierrors.StatusError,
) (any, *apierrors.StatusError) {
	path = strings.TrimSuffix(path, "/status")
	old := s.objects[path]
	dry := r.URL.Query().Get("dryRun") != ""
	switch {
	case ownersOnly(r):
		to := &unstructured.Unstructured{Object: old}
		from := unstructured.Unstructured{Object: object}
		if old == nil || to.GetUID() != from.GetUID() {
			return nil, apierrors.NewConflict(schema.GroupResource{}, name(object), nil)
		}
		manager := r.URL.Query().Get("fieldManager")
		owners := slices.DeleteFunc(to.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
			return s.ownedBy[path+" "+manager] == o.UID
		})
		added := from.GetOwnerReferences()[0]
		s.ownedBy[path+" "+manager] = added.UID
		to.SetOwnerReferences(append(owners, added))
	case r.Method == http.MethodPost, r.Header.Get("Content-Type") == string(types.ApplyPatchType):
		if r.Method == http.MethodPost && old != nil {
			return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, name(object))
		}
		if !dry {
			s.put(path, object)
		}
		return object, nil
	case old == nil:
		return nil, missing
	case r.Method == http.MethodPut: // of a status alone
		old["status"] = object["status"]
	case r.Method == http.MethodPatch:
		spec, _ := object["spec"].(map[string]any)
		for field, value := range spec {
			old["spec"].(map[string]any)[field] = value
		}
	case r.Method == http.MethodDelete && (s.held == "" || !strings.HasSuffix(path, s.held)):
		delete(s.objects, path)
	}
	return old, nil
}

// put keeps an object. A new one gets an identity of its own.
func (s *apiServer) put(path string, object map[string]any) {
	s.made++
	uid := types.UID(fmt.Sprint("uid-", s.made))
	if old := s.objects[path]; old != nil {
		uid = (&unstructured.Unstructured{Object: old}).GetUID()
	}
	(&unstructured.Unstructured{Object: object}).SetUID(uid)
	s.objects[path] = object
}

// startEtcd adds a pod of etcd's first member, whose container has run.
func (s *apiServer) startEtcd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put("/api/v1/namespaces/music/pods/rondo-etcd-0", map[string]any{"apiVersion": "v1",
		"kind": "Pod", "metadata": map[string]any{"name": "rondo-etcd-0",
			"labels": map[string]any{labelName: "rondo", labelComponent: Etcd}},
		"status": map[string]any{"containerStatuses": []any{map[string]any{"name": "etcd",
			"containerID": "containerd://1"}}}})
}

func (s *apiServer) list(path, selector, version, kind string) any {
	chosen, err := labels.Parse(selector)
	if err != nil {
		panic(err)
	}
	items := []any{}
	for at, object := range s.objects {
		u := unstructured.Unstructured{Object: object}
		if strings.HasPrefix(at, path+"/") && chosen.Matches(labels.Set(u.GetLabels())) {
			items = append(items, object)
		}
	}
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{},
		"items": items}
}

// discovery answers what kinds there are; nil for other paths.
func discovery(path string) any {
	switch path {
	case "/api":
		return metav1.APIVersions{Versions: []string{"v1"}}
	case "/apis":
		list := metav1.APIGroupList{}
		for version := range serverResources() {
			group, number, named := strings.Cut(version, "/")
			if !named {
				continue
			}
			v := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: number}
			list.Groups = append(list.Groups, metav1.APIGroup{Name: group,
				Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
		}
		return list
	}
	for version, resources := range serverResources() {
		if path != "/apis/"+version && path != "/api/"+version {
			continue
		}
		list := metav1.APIResourceList{GroupVersion: version}
		for resource, kind := range resources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource,
				Kind: kind, Namespaced: kind != "Namespace"})
		}
		return list
	}
	return nil
}

// object finds one of the namespace by resource/name, to be changed.
func (s *apiServer) object(t *testing.T, named string) *unstructured.Unstructured {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, object := range s.objects {
		if strings.HasSuffix(path, "/namespaces/music/"+named) {
			return &unstructured.Unstructured{Object: object}
		}
	}
	t.Fatalf("the server has no %s", named)
	return nil
}

// changes returns what was asked to be changed since the last call.
func (s *apiServer) changes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.requests
	s.requests = nil
	return changes
}
