package etcdstore

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// history finds out that etcd has lost writes, because it was restored from a backup or emptied.
// Reads and writes are linearizable: an answer's revision is not below one that was known before
// the request was sent, unless the history is another one.
type history struct {
	log *slog.Logger

	mu       sync.Mutex
	cluster  uint64 // id of the etcd cluster; 0: not known yet
	revision int64  // highest of this history
	times    int    // how often etcd has lost writes
	rewound  chan struct{}
}

// observe is a client's interceptor. It compares the answers' headers with what is known.
func (h *history) observe(ctx context.Context, method string, request, reply any,
	conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	h.mu.Lock()
	times, known := h.times, h.revision
	h.mu.Unlock()
	err := next(ctx, method, request, reply, conn, opts...)
	answer, has := reply.(interface{ GetHeader() *pb.ResponseHeader })
	if err != nil || !has || !strings.HasPrefix(method, "/etcdserverpb.KV/") {
		return err
	}
	header := answer.GetHeader()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.times != times: // the request may be of the other history
	case h.cluster != 0 && header.GetClusterId() != h.cluster || header.GetRevision() < known:
		h.log.Warn("etcd has lost writes: it was restored from a backup, or emptied",
			"revision", header.GetRevision(), "after", known)
		h.cluster, h.revision = header.GetClusterId(), header.GetRevision()
		h.times++
		close(h.rewound)
		h.rewound = make(chan struct{})
	default:
		h.cluster = header.GetClusterId()
		h.revision = max(h.revision, header.GetRevision())
	}
	return nil
}

// next returns a channel that is closed when etcd is seen to have lost writes again.
func (h *history) next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rewound
}

// Losses returns how often etcd was seen to lose writes since the store was opened.
func (s *Store) Losses() int {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	return s.history.times
}
