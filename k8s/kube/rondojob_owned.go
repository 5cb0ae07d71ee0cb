package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rondo/internal/app"
)

// refuseOwned fails for a job that a RondoJob describes, because its operator would undo the
// change. kubectl is the command that does the same.
func refuseOwned(ctx context.Context, c *Cluster, job, kubectl string) error {
	record, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, recordOf(job),
		metav1.GetOptions{})
	if err != nil { // there is no record, or nobody who may see it
		return nil
	}
	by := metav1.GetControllerOf(record)
	if by == nil || by.Kind != rondoJobKind().Kind {
		return nil
	}
	return app.Usagef("job %s is described by rondojob/%s: change that: kubectl -n %s%s %s", job,
		by.Name, c.Namespace, c.reach, kubectl)
}
