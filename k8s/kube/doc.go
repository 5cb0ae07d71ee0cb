// Package kube is all that Rondo knows of Kubernetes' API: finding the cluster, rendering a job's
// objects from the manifests in k8s, applying and removing them, and saying in one line with a
// remedy what the cluster refuses or cannot do. It speaks to the API server alone, and to a job by
// the annotations of the Job of its workers, which an observer reads and writes. It may import what
// a job is, and neither etcd nor gRPC; only cmd/rondo and observe may import it, because client-go
// is large.
package kube
