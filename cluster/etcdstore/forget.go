package etcdstore

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Forget removes all keys of the job. No process may still run the job: it would find no spec.
func (s *Store) Forget(ctx context.Context) error {
	return s.untilDone(ctx, "forgetting the job", func(ctx context.Context) error {
		_, err := s.client.Delete(ctx, s.root, clientv3.WithPrefix())
		return err
	})
}
