package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/types"
)

// OperatorManifest returns the objects that install an operator, as `kubectl apply -f` reads them:
// the definition of RondoJobs, the operator's rights and its Deployment. Its rights are of its own
// namespace, or with everywhere of the whole cluster.
func OperatorManifest(image, namespace string, everywhere bool) ([]byte, error) {
	s := &Submission{Options: Options{Image: image,
		ImagePullPolicy: string(corev1.PullIfNotPresent)}}
	if err := s.validateImage(); err != nil {
		return nil, err
	}
	tree, err := memoryTree()
	if err != nil {
		return nil, err
	}
	objects, err := compose(tree, "/submitted/operator", types.Kustomization{Namespace: namespace,
		Images: s.images(), Resources: []string{"../../operator"}})
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if everywhere {
			if err := widen(object); err != nil {
				return nil, fmt.Errorf("%s: %w", nameOf(object), err)
			}
		}
	}
	return (&Manifests{Shared: objects}).YAML()
}

// widen gives an operator the whole cluster.
func widen(object *unstructured.Unstructured) error {
	switch object.GetKind() {
	case "Role", "RoleBinding":
		object.SetKind("Cluster" + object.GetKind())
		object.SetNamespace("")
		if object.GetKind() == "ClusterRoleBinding" {
			return unstructured.SetNestedField(object.Object, "ClusterRole", "roleRef", "kind")
		}
	case "Deployment":
		return edit(object.Object, func(p *corev1.PodSpec) error {
			p.Containers[0].Args = append(p.Containers[0].Args, "--all-namespaces")
			return nil
		}, "spec", "template", "spec")
	}
	return nil
}

// ImageOf returns the image of the first container of a pod.
func ImageOf(ctx context.Context, c *Cluster, pod string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := c.Client.CoreV1().Pods(c.Namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", Explain(err, "asking for the image of pod "+pod)
	}
	return found.Spec.Containers[0].Image, nil
}
