// Package kubetest has the clients of kube.API over objects in memory, for tests. Unlike
// client-go's fake clientset it has no other API groups, which take a minute to compile, and no
// schema: a server-side apply replaces lists as a whole.
//
// It imports nothing of this module.
package kubetest

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/watch"
	discover "k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/scheme"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	fakeapps "k8s.io/client-go/kubernetes/typed/apps/v1/fake"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	fakeauthorization "k8s.io/client-go/kubernetes/typed/authorization/v1/fake"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	fakebatch "k8s.io/client-go/kubernetes/typed/batch/v1/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	fakecore "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	fakepolicy "k8s.io/client-go/kubernetes/typed/policy/v1/fake"
	"k8s.io/client-go/testing"
)

// A Client keeps objects in its Objects. Reactors that a test prepends answer first.
type Client struct {
	testing.Fake
	Objects testing.ObjectTracker
}

// New returns a client that has the objects. A watch tells what changes after it began.
func New(objects ...runtime.Object) *Client {
	c := &Client{Objects: testing.NewFieldManagedObjectTracker(scheme.Scheme,
		scheme.Codecs.UniversalDecoder(), managedfields.NewDeducedTypeConverter())}
	for _, o := range objects {
		if err := c.Objects.Add(o); err != nil {
			panic(err) // the scheme lacks its type
		}
	}
	c.AddReactor("*", "*", testing.ObjectReaction(c.Objects))
	c.AddWatchReactor("*", func(a testing.Action) (bool, watch.Interface, error) {
		changes, err := c.Objects.Watch(a.GetResource(), a.GetNamespace(),
			a.(testing.WatchActionImpl).ListOptions)
		return err == nil, changes, err
	})
	return c
}

// Discovery says what kinds there are: none.
func (c *Client) Discovery() discover.DiscoveryInterface {
	return &fakediscovery.FakeDiscovery{Fake: &c.Fake}
}

// AppsV1 is the client of Deployments and StatefulSets.
func (c *Client) AppsV1() appsv1.AppsV1Interface { return &fakeapps.FakeAppsV1{Fake: &c.Fake} }

// AuthorizationV1 is the client of access reviews.
func (c *Client) AuthorizationV1() authorizationv1.AuthorizationV1Interface {
	return &fakeauthorization.FakeAuthorizationV1{Fake: &c.Fake}
}

// BatchV1 is the client of Jobs.
func (c *Client) BatchV1() batchv1.BatchV1Interface { return &fakebatch.FakeBatchV1{Fake: &c.Fake} }

// CoreV1 is the client of pods, configuration and events.
func (c *Client) CoreV1() corev1.CoreV1Interface { return &fakecore.FakeCoreV1{Fake: &c.Fake} }

// PolicyV1 is the client of disruption budgets.
func (c *Client) PolicyV1() policyv1.PolicyV1Interface {
	return &fakepolicy.FakePolicyV1{Fake: &c.Fake}
}
