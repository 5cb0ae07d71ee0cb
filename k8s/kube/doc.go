// Package kube is all that Rondo knows of Kubernetes' API: finding the cluster, rendering a job's
// objects from the manifests in k8s, applying and removing them, and saying in one line with a
// remedy what the cluster refuses or cannot do. It trains nothing and knows nothing of rings. It
// may import anything; only cmd/rondo may import it, because client-go is large.
package kube
