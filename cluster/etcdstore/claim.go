package etcdstore

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Claim returns true to the first process that claims a name in the present run of the job. It
// makes an event happen once, such as a rehearsed fault. The next run's PutSpec frees all names.
func (s *Store) Claim(ctx context.Context, name string) (mine bool, err error) {
	if name == "" || strings.Contains(name, "/") {
		return false, fmt.Errorf("claiming %q: a name must not be empty or contain a slash", name)
	}
	key := s.claimsPrefix() + name
	err = s.once(ctx, "claiming "+name, func(ctx context.Context) error {
		answer, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, "")).Commit()
		if err == nil {
			mine = answer.Succeeded
		}
		return err
	})
	return mine, err
}

// Unregister removes the registrations of a process that has died.
func (s *Store) Unregister(ctx context.Context, host string, pid int) error {
	return s.once(ctx, fmt.Sprintf("unregistering process %d", pid),
		func(ctx context.Context) error {
			answer, err := s.client.Get(ctx, s.membersPrefix(), clientv3.WithPrefix())
			if err != nil {
				return err
			}
			members, err := membersIn(answer.Kvs)
			if err != nil {
				return err
			}
			for _, m := range members {
				if m.Host != host || m.PID != pid {
					continue
				}
				if _, err := s.client.Delete(ctx, s.memberKey(m.ID)); err != nil {
					return err
				}
			}
			return nil
		})
}
