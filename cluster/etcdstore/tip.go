package etcdstore

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// Tip implements cluster.Registry.
func (s *Store) Tip(ctx context.Context) (tip cluster.Tip, err error) {
	err = s.once(ctx, "reading the tip", func(ctx context.Context) error {
		tip, _, err = s.readTip(ctx)
		return err
	})
	return tip, err
}

// readTip returns the tip and its revision; 0: there is none.
func (s *Store) readTip(ctx context.Context) (cluster.Tip, int64, error) {
	answer, err := s.client.Get(ctx, s.tipKey())
	if err != nil || len(answer.Kvs) == 0 {
		return cluster.Tip{}, 0, err
	}
	tip, err := decodeTip(answer.Kvs[0].Value)
	if err != nil {
		return cluster.Tip{}, 0, fmt.Errorf("etcd key %s %w: %w", s.tipKey(), errUnreadable, err)
	}
	return tip, answer.Kvs[0].ModRevision, nil
}

// tipTries is how often a tip is put at most while others put theirs.
const tipTries = 4

// PutTip implements cluster.Registry.
func (s *Store) PutTip(ctx context.Context, t cluster.Tip) error {
	return s.once(ctx, "storing the tip", func(ctx context.Context) error {
		for range tipTries {
			stored, revision, err := s.readTip(ctx)
			if err != nil || !stored.Before(t) {
				return err
			}
			unchanged := clientv3.Compare(clientv3.ModRevision(s.tipKey()), "=", revision)
			answer, err := s.client.Txn(ctx).If(unchanged).
				Then(clientv3.OpPut(s.tipKey(), string(encodeTip(t)))).Commit()
			if err != nil || answer.Succeeded {
				return err
			}
		}
		return fmt.Errorf("other workers changed it %d times meanwhile", tipTries)
	})
}

// LoadTip implements cluster.Leadership.
func (l *leadership) LoadTip(ctx context.Context) (tip cluster.Tip, err error) {
	err = l.fenced(ctx, "loading the tip", func(ctx context.Context) error {
		tip, _, err = l.store.readTip(ctx)
		return err
	})
	return tip, err
}

func encodeTip(t cluster.Tip) []byte {
	return encode(&rondov1.Tip{Run: t.Run, Generation: uint64(t.Generation), Step: t.Step,
		Digest: t.Digest, Saved: t.Saved, Final: t.Final, Result: []byte(t.Result)})
}

func decodeTip(value []byte) (cluster.Tip, error) {
	var message rondov1.Tip
	if err := proto.Unmarshal(value, &message); err != nil {
		return cluster.Tip{}, fmt.Errorf("not a tip: %w", err)
	}
	if message.Generation > maxGeneration {
		return cluster.Tip{}, fmt.Errorf("a tip of generation %d", message.Generation)
	}
	t := cluster.Tip{Run: message.Run, Generation: cluster.Generation(message.Generation),
		Step: message.Step, Digest: message.Digest, Saved: message.Saved, Final: message.Final,
		Result: string(message.Result)}
	return t, t.Validate()
}
