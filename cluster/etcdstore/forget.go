package etcdstore

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Forget removes all that is stored of the job. It is for a job that no process runs any more: one
// that still does would find itself without a spec.
func (s *Store) Forget(ctx context.Context) error {
	return s.untilDone(ctx, "forgetting the job", func(ctx context.Context) error {
		_, err := s.client.Delete(ctx, s.root, clientv3.WithPrefix())
		return err
	})
}
