package k8s

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An S3-compatible server over a folder, built from its module.
const (
	gatewayVersion = "v1.8.0"
	gatewayModule  = "github.com/versity/versitygw/cmd/versitygw@" + gatewayVersion
	gatewayImage   = "localhost/versitygw:" + gatewayVersion
	gatewayFolder  = "../../bin/tools/versitygw-" + gatewayVersion // as the Makefile has it
)

// s3 runs the server in the namespace, with one bucket, and returns the URL of a folder in it. Its
// Secret is the one that jobs use by default. The node is one that the test does not cut; empty is
// any.
func (n *namespace) s3(node string) func(folder string) string {
	n.t.Helper()
	n.image(n.t, gatewayImage, func(t *testing.T, archive string) {
		pack(t, archive, gatewayImage, gateway(t))
	})
	n.apply(fmt.Sprintf(gatewayObjects, gatewayImage, node))
	n.do("rollout", "status", "deployment/s3", "--timeout=120s")
	return func(folder string) string {
		return "s3://models/" + folder + "?endpoint=http://s3:9000&use_path_style=true"
	}
}

// gateway builds the server, or takes the one that was built before.
func gateway(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs(gatewayFolder)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "versitygw")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if _, err := run(buildTimeout, "", "env", "CGO_ENABLED=0", "GOBIN="+folder, "go", "install",
		gatewayModule); err != nil {
		t.Fatal(err)
	}
	return file
}

const gatewayObjects = `
apiVersion: v1
kind: Secret
metadata: {name: rondo-s3}
stringData:
  AWS_ACCESS_KEY_ID: tester
  AWS_SECRET_ACCESS_KEY: a-secret
  AWS_REGION: us-east-1
  credentials: |
    [default]
    aws_access_key_id = tester
    aws_secret_access_key = a-secret
    region = us-east-1
---
apiVersion: v1
kind: Service
metadata: {name: s3}
spec:
  selector: {app: s3}
  ports: [{port: 9000}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: s3}
spec:
  selector: {matchLabels: {app: s3}}
  template:
    metadata: {labels: {app: s3}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext:
        runAsNonRoot: true
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      containers:
      - name: s3
        image: %s
        args: [--port, ":9000", --health, /health, posix, --sidecar, /meta, /data]
        env:
        - name: ROOT_ACCESS_KEY_ID
          valueFrom: {secretKeyRef: {name: rondo-s3, key: AWS_ACCESS_KEY_ID}}
        - name: ROOT_SECRET_ACCESS_KEY
          valueFrom: {secretKeyRef: {name: rondo-s3, key: AWS_SECRET_ACCESS_KEY}}
        ports: [{containerPort: 9000}]
        readinessProbe: {httpGet: {path: /health, port: 9000}, periodSeconds: 1}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
        volumeMounts:
        - {name: data, mountPath: /data}
        - {name: data, mountPath: /data/models, subPath: models}
        - {name: meta, mountPath: /meta}
        - {name: meta, mountPath: /tmp}
      nodeSelector: {%s}
      volumes:
      - {name: data, emptyDir: {}}
      - {name: meta, emptyDir: {}}
`

// ledgers is a volume of its own on each node, for the workers' audit logs: they must outlive
// their pods, and nodes that lose their power.
type ledgers struct {
	*namespace
	nodes  []string
	folder string
}

const ledgerClaim = "ledgers"

// ledgers makes the volume.
func (n *namespace) ledgers() *ledgers {
	n.t.Helper()
	cut := n.cut(n.t)
	l := &ledgers{namespace: n, nodes: n.cluster.nodes(n.t),
		folder: "/var/lib/rondo-test/" + n.name}
	remove := func() {
		for _, node := range l.nodes {
			cut("exec", node, "rm", "-rf", l.folder)
		}
		_, _ = n.try("", "delete", "pv", n.name, "--ignore-not-found", "--wait=false")
	}
	remove()
	n.t.Cleanup(remove)
	for _, node := range l.nodes {
		cut("exec", node, "install", "-d", "-m", "0777", l.folder)
	}
	n.apply(fmt.Sprintf(ledgerObjects, n.name, l.folder, strings.Join(l.nodes, ", "), n.name,
		ledgerClaim, ledgerClaim, n.name))
	return l
}

// audit proves, from the logs of all nodes, that no segment was left out or counted twice.
func (l *ledgers) audit(flags ...string) {
	l.t.Helper()
	dir := l.t.TempDir()
	for _, node := range l.nodes {
		out := l.cut(l.t)("exec", node, "tar", "-C", l.folder, "-c", ".")
		if _, err := output(l.t, out, "tar", "-C", dir, "-x"); err != nil {
			l.t.Fatal(err)
		}
	}
	out, err := rondo(l.t, append([]string{"audit", filepath.Join(dir, "audit")}, flags...)...)
	if err != nil {
		l.t.Errorf("%v\n%s", err, out)
	}
	l.t.Logf("rondo audit: %s", strings.TrimSpace(out))
}

const ledgerObjects = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  local: {path: %s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]
  claimRef: {namespace: %s, name: %s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: %s
  resources: {requests: {storage: 1Gi}}
`
