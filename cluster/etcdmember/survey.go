package etcdmember

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"rondo/internal/certs"
)

const (
	// askTimeout limits the answer of a member or a majority, including the lookup of its name. On
	// Kubernetes (k8s/etcd) the lookup takes a second longer for each lost answer.
	askTimeout    = 3 * time.Second
	changeTimeout = 5 * time.Second // for a majority to change its members
	answerBytes   = 1 << 20         // most bytes of an answer
)

// Paths on the peers' listeners. membersPath is etcd's own.
const (
	membersPath = "/members"
	emptyPath   = "/rondo/empty"
)

// ask asks all other members at once, and then the majority of their cluster.
func (m *Member) ask(ctx context.Context) survey {
	transport := &http.Transport{TLSClientConfig: clientTLS(m.peer), DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: askTimeout}
	var others survey
	for _, p := range m.cfg.Peers {
		if p.Name != m.self.name {
			others.views = append(others.views, view{peer: p})
		}
	}
	var asked sync.WaitGroup
	for i := range others.views {
		asked.Go(func() { m.askOne(ctx, client, &others.views[i]) })
	}
	asked.Wait()
	for _, v := range others.views {
		for _, member := range v.roster.members {
			if slices.Contains(member.PeerURLs, m.peerURL(v.peer)) {
				others.clients = append(others.clients, member.ClientURLs...)
			}
		}
	}
	if len(others.clients) > 0 {
		others.agreed = m.askMajority(ctx, others.clients)
	}
	rejectShared(others.views)
	return others
}

// emptyAnswer is the answer of a member with an empty disk: its identity, and the members that have
// told it the same.
type emptyAnswer struct {
	Name, Token string
	Heard       []string
}

func (m *Member) emptyAnswer() emptyAnswer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return emptyAnswer{Name: m.self.name, Token: m.cfg.Token, Heard: slices.Clone(m.heard)}
}

// hear records that a member's disk is empty, and reports whether it ever said so.
func (m *Member) hear(v view) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := slices.Contains(m.heard, v.peer.Name)
	if v.empty && !known {
		m.heard = append(m.heard, v.peer.Name)
	}
	return v.empty || known
}

// askOne asks a member for its roster, or whether its disk is empty.
func (m *Member) askOne(ctx context.Context, client *http.Client, v *view) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { v.address = c.Conn.RemoteAddr().String() }})
	var who emptyAnswer
	id, err := get(ctx, client, m.peerURL(v.peer)+emptyPath, &who)
	switch {
	case errors.Is(err, errNotServed): // it runs etcd
		id, err = get(ctx, client, m.peerURL(v.peer)+membersPath, &v.roster.members)
	case err == nil && (who.Name != v.peer.Name || who.Token != m.cfg.Token):
		err = fmt.Errorf("%s with --token %q answers at %s", who.Name, who.Token, v.address)
	case err == nil:
		v.empty, v.hearsMe = true, slices.Contains(who.Heard, m.self.name)
	}
	v.roster.cluster, v.err = id, err
	v.saidEmpty = m.hear(*v)
}

// rejectShared discards the answers of an address that answers for several members, because etcd
// does not say which member it is.
func rejectShared(views []view) {
	answers := map[string]int{}
	for _, v := range views {
		if v.err == nil {
			answers[v.address]++
		}
	}
	for i, v := range views {
		if v.err == nil && answers[v.address] > 1 {
			views[i] = view{peer: v.peer, address: v.address, err: fmt.Errorf("one process "+
				"answers for it and another member, at %s", v.address)}
		}
	}
}

const clusterHeader = "X-Etcd-Cluster-ID"

var errNotServed = errors.New("it is not an etcd member")

// get decodes the answer into into, and returns the id of its cluster.
func get(ctx context.Context, client *http.Client, from string, into any) (types.ID, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // without the URL
		}
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	switch {
	case response.StatusCode == http.StatusNotFound:
		return 0, errNotServed
	case response.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("HTTP status %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, answerBytes))
	if err == nil && into != nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return 0, err
	}
	return types.IDFromString(response.Header.Get(clusterHeader))
}

// askMajority returns the roster that a majority confirms now; nil if there is no majority.
func (m *Member) askMajority(ctx context.Context, endpoints []string) *roster {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client, err := m.client(endpoints)
	if err != nil {
		return nil
	}
	defer func() { _ = client.Close() }()
	answer, err := client.MemberList(ctx) // linearizable: only a leader with a majority can answer
	if err != nil {
		return nil
	}
	return rosterOf(answer.Header, answer.Members)
}

func rosterOf(header *etcdserverpb.ResponseHeader, members []*etcdserverpb.Member) *roster {
	r := &roster{cluster: types.ID(header.GetClusterId())}
	for _, member := range members {
		r.members = append(r.members, membership.Member{
			ID:             types.ID(member.GetID()),
			RaftAttributes: membership.RaftAttributes{PeerURLs: member.GetPeerURLs()},
			Attributes: membership.Attributes{Name: member.GetName(),
				ClientURLs: member.GetClientURLs()},
		})
	}
	return r
}

func (m *Member) change(ctx context.Context, v verdict, others survey) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	client, err := m.client(others.clients)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if v.action == remove {
		_, err = client.MemberRemove(ctx, uint64(v.id))
	} else {
		var answer *clientv3.MemberAddResponse
		if answer, err = client.MemberAdd(ctx, []string{m.self.url}); err == nil {
			m.self.added = types.ID(answer.Member.GetID())
		}
	}
	return err
}

func (m *Member) client(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: askTimeout,
		TLS: clientTLS(m.certs), Logger: zap.NewNop()})
}

// clientTLS returns the TLS configuration for calls to other members; nil: no TLS.
func clientTLS(identity *certs.Identity) *tls.Config {
	if identity == nil {
		return nil
	}
	return identity.Client("")
}
