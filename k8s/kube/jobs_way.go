package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/cluster/etcdstore"
	"rondo/cluster/meet"
)

// wayPatience is how long etcd may take to answer through a tunnel.
const wayPatience = 20 * time.Second

// A Way leads to a job's etcd and to its coordinator from outside the cluster.
type Way struct {
	meet.Config
	cluster *Cluster
	tunnel  *Tunnel
	folder  string // of the certificate; empty: none
}

// Way opens the way to a job. With TLS it shows the certificate of the job's pods, which lies in
// a folder of its own until Close.
func (c *Cluster) Way(ctx context.Context, job *Job) (*Way, error) {
	endpoints, err := job.etcd()
	if err != nil {
		return nil, err
	}
	secret, err := job.secret()
	if err != nil {
		return nil, err
	}
	way := &Way{cluster: c, tunnel: NewTunnel(c)}
	if secret != "" {
		if way.folder, err = c.certificate(ctx, secret); err != nil {
			return nil, err
		}
	}
	way.Config = meet.Config{Etcd: endpoints, Job: job.Name, TLS: way.folder,
		Patience: wayPatience, Dial: way.tunnel.Dial}
	return way, nil
}

// Store opens the job's part of etcd. Where etcd does not answer, it says why, as far as the
// cluster tells.
func (w *Way) Store(ctx context.Context) (*etcdstore.Store, error) {
	store, err := w.Config.Store(ctx)
	if err == nil || ctx.Err() != nil {
		return store, err
	}
	return nil, fmt.Errorf("the etcd of job %s, at %s, cannot be asked (%w)%s", w.Job, w.Etcd[0],
		deepest(err), w.cluster.why(w.Job))
}

// Close ends the tunnel and removes the certificate.
func (w *Way) Close() {
	w.tunnel.Close()
	if w.folder != "" {
		_ = os.RemoveAll(w.folder)
	}
}

// certificate puts the files of a Secret where only this user can read them.
func (c *Cluster) certificate(ctx context.Context, name string) (folder string, err error) {
	secret, err := c.Client.CoreV1().Secrets(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", Explain(err, "reading the job's certificate (secret "+name+")")
	}
	if folder, err = os.MkdirTemp("", "rondo-tls-"); err != nil {
		return "", fmt.Errorf("a folder for the job's certificate: %w", err)
	}
	for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if err := os.WriteFile(filepath.Join(folder, file), secret.Data[file], 0o600); err != nil {
			_ = os.RemoveAll(folder)
			return "", fmt.Errorf("writing the job's certificate: %w", err)
		}
	}
	return folder, nil
}
