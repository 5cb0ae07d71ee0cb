// Package k8s holds the manifests that Rondo applies to a Kubernetes cluster: kustomizations of the
// shared etcd and of one job, components that change them, and overlays that put both together for
// `kubectl apply -k`. `rondo submit` renders the same files. README.md has the tree in one page.
//
// It knows no cluster, renders nothing itself, and imports nothing of Rondo's.
package k8s

import (
	"embed"
	"io/fs"
)

//go:embed namespace.yaml etcd job base components overlays operator
var files embed.FS

// FS is the tree of kustomizations: etcd, job, base, components, overlays, operator; and the
// namespace.
func FS() fs.FS { return files }
