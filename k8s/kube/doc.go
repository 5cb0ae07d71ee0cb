// Package kube is the only room that knows the API of Kubernetes. It finds the cluster, renders a
// job's objects from the manifests in k8s, applies, watches and removes them, and turns the
// cluster's errors into one line with a remedy. Its operator does the same for each RondoJob. It
// sends requests to the API server alone. Commands and a job's observer exchange progress and
// wishes through the annotations of the workers' Job. It may import a job's meaning, but neither
// etcd's client nor gRPC. Only cmd/rondo and observe may import it, because client-go is large.
package kube
