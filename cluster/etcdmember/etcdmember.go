// Package etcdmember runs a member of an etcd cluster that heals itself: the embedded etcd server,
// and the decision how to start it. A member with an empty disk asks the others. It founds a
// cluster only if all of them are there with empty disks. Otherwise a majority adds it anew, in
// place of its former self. With TLS, members have an authority of their own, and etcd's users are
// what clients' certificates say. It stores nothing of Rondo. It links the etcd server, so the lean
// commands do not import it. It may import internal/certs.
package etcdmember

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"

	"rondo/internal/certs"
)

const (
	askInterval = time.Second // between two rounds of questions
	tellEvery   = 30 * time.Second
	maxRestarts = 5 // consecutive ends of the server within one process
	// A server that ran for this long started well: its end does not count with earlier ones.
	soundAfter = 10 * time.Minute
)

// Peer is a member's entry in --peers.
type Peer struct {
	Name    string
	Address string // host:port for the other members
}

// Config names the member and its cluster.
type Config struct {
	Name       string
	Peers      []Peer // all founding members, with this one
	Token      string // distinguishes clusters with the same member names
	Data       string // folder of this member's disk
	Listen     string // IP address to listen on
	ClientPort int
	Health     string        // host:port of plain HTTP: health and metrics
	TLS        string        // tree of certificates, see certs.Issue; empty: no TLS
	Insecure   bool          // other machines may reach it without TLS
	Patience   time.Duration // how long to wait for the other members
	Verbose    bool          // with etcd's informational log
	Log        *slog.Logger
}

// Member is a checked configuration, ready to run.
type Member struct {
	cfg    Config
	self   self
	port   string          // of the peers' listener
	certs  *certs.Identity // as a client and for clients; nil: no TLS
	peer   *certs.Identity // as a member and for members
	access access
	scheme string
	lists  map[string]bool // the folders that had a list of revoked certificates

	mu    sync.Mutex
	heard []string // members that told this process, while its disk is empty, that theirs is
}

// ParsePeers parses NAME or NAME=HOST:PORT. Without an address it is NAME.domain and port.
func ParsePeers(words []string, domain string, port int) ([]Peer, error) {
	var peers []Peer
	for _, word := range words {
		name, address, given := strings.Cut(word, "=")
		if !given {
			host := name
			if domain != "" {
				host += "." + domain
			}
			address = net.JoinHostPort(host, strconv.Itoa(port))
		}
		if host, _, err := net.SplitHostPort(address); err != nil || host == "" || name == "" {
			return nil, fmt.Errorf("--peers: %q is neither NAME nor NAME=HOST:PORT", word)
		}
		peers = append(peers, Peer{Name: name, Address: address})
	}
	return peers, nil
}

// New checks the configuration. Its errors name the flags of `rondo etcd`.
func New(cfg Config) (*Member, error) {
	at := slices.IndexFunc(cfg.Peers, func(p Peer) bool { return p.Name == cfg.Name })
	switch {
	case cfg.Name == "" || at < 0:
		return nil, fmt.Errorf("--name %q is none of --peers: each member is listed, this one too",
			cfg.Name)
	case cfg.Token == "":
		return nil, errors.New("--token is empty: it tells this cluster from others")
	case cfg.Data == "":
		return nil, errors.New("--data is needed: the folder that is this member's disk")
	case net.ParseIP(cfg.Listen) == nil:
		return nil, fmt.Errorf("--listen %q is not an IP address", cfg.Listen)
	case cfg.ClientPort < 1 || cfg.ClientPort > 65535:
		return nil, fmt.Errorf("--client-port %d is not a port", cfg.ClientPort)
	case cfg.Patience <= 0:
		return nil, fmt.Errorf("--patience %v: must be above zero", cfg.Patience)
	}
	if _, _, err := net.SplitHostPort(cfg.Health); err != nil {
		return nil, fmt.Errorf("--health %q is not HOST:PORT or :PORT", cfg.Health)
	}
	decided := cfg.TLS != "" || cfg.Insecure
	for flag, address := range map[string]string{"listen": net.JoinHostPort(cfg.Listen,
		strconv.Itoa(cfg.ClientPort)), "health": cfg.Health} {
		if err := certs.CheckListener(flag, address, decided); err != nil {
			return nil, err
		}
	}
	m := &Member{cfg: cfg, scheme: "http", lists: make(map[string]bool)}
	if m.cfg.Log == nil {
		m.cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.TLS != "" {
		var err error
		if m.certs, err = certs.LoadEtcd(cfg.TLS, certs.EtcdFolder); err != nil {
			return nil, err
		}
		if m.peer, err = certs.LoadEtcd(cfg.TLS, certs.PeerFolder); err != nil {
			return nil, err
		}
		m.scheme = "https"
	}
	_, m.port, _ = net.SplitHostPort(cfg.Peers[at].Address)
	founders, err := m.founders()
	if err != nil {
		return nil, err
	}
	m.self = self{name: cfg.Name, url: m.peerURL(cfg.Peers[at]), founders: founders}
	return m, nil
}

// founders returns the cluster that the members of --peers found. Its ids follow from the addresses
// and the token, so all members with the same flags found the same cluster.
func (m *Member) founders() (roster, error) {
	urls := types.URLsMap{}
	seen := map[string]string{}
	for _, p := range m.cfg.Peers {
		address := m.peerURL(p)
		parsed, err := types.NewURLs([]string{address})
		if err != nil {
			return roster{}, fmt.Errorf("--peers: %s: %w", p.Name, err)
		}
		if other, taken := seen[address]; taken || urls[p.Name] != nil {
			return roster{}, fmt.Errorf("--peers: %s (%s) is listed twice%s", p.Name, p.Address,
				also(other))
		}
		urls[p.Name], seen[address] = parsed, p.Name
	}
	cluster, err := membership.NewClusterFromURLsMap(zap.NewNop(), m.cfg.Token, urls)
	if err != nil {
		return roster{}, fmt.Errorf("--peers: %w", err)
	}
	r := roster{cluster: cluster.ID()}
	for _, member := range cluster.Members() {
		r.members = append(r.members, *member)
	}
	return r, nil
}

func also(other string) string {
	if other == "" {
		return ""
	}
	return ", as " + other
}

func (m *Member) peerURL(p Peer) string {
	return (&url.URL{Scheme: m.scheme, Host: p.Address}).String()
}

// clientURL returns the address for clients: the host that peers use, with the client port.
func (m *Member) clientURL() url.URL {
	parsed, err := url.Parse(m.self.url)
	if err != nil {
		panic(fmt.Sprintf("etcdmember: %s was a URL before: %v", m.self.url, err))
	}
	return url.URL{Scheme: m.scheme,
		Host: net.JoinHostPort(parsed.Hostname(), strconv.Itoa(m.cfg.ClientPort))}
}

// Run runs the member until ctx ends. Then it transfers its leadership, closes, and returns nil.
func (m *Member) Run(ctx context.Context) error {
	health, err := m.openHealth()
	if err != nil {
		return err
	}
	defer health.close()
	for ends := 0; ; {
		how, err := m.prepare(ctx, health)
		begin := time.Now()
		if err == nil {
			err = m.serve(ctx, how, health)
		}
		switch ends = count(ends, time.Since(begin), err); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNoStart) || ends > maxRestarts:
			return err
		}
		m.cfg.Log.Warn("the server has stopped; starting it again", "reason", err)
		pause(ctx, askInterval)
	}
}

// count counts consecutive ends of the server, except restarts for a new authority.
func count(ends int, served time.Duration, err error) int {
	switch {
	case errors.Is(err, errNewTrust):
		return ends
	case served >= soundAfter:
		return 1
	}
	return ends + 1
}

// errNoStart marks an error that another try in this process cannot remedy.
var errNoStart = errors.New("this member cannot start")

// prepare performs the steps towards the cluster until the server can be started.
func (m *Member) prepare(ctx context.Context, health *health) (verdict, error) {
	deadline, cancel := context.WithTimeout(ctx, m.cfg.Patience)
	defer cancel()
	var standIn *placeholder
	defer func() { standIn.close() }()
	said, saidAt := "", time.Time{}
	for {
		found, err := readDisk(m.cfg.Data)
		if err != nil {
			return verdict{}, fmt.Errorf("%w: %w", errNoStart, err)
		}
		if found.used {
			m.forgetEmpty()
		} else if standIn == nil {
			if standIn, err = m.listenPlaceholder(); err != nil {
				return verdict{}, fmt.Errorf("%w: %w", errNoStart, err)
			}
		}
		others := m.ask(deadline)
		v := decide(m.self, found, others)
		if v.action.starts() {
			m.cfg.Log.Info(v.why)
			return v, nil
		}
		if v.action == refuse {
			return v, fmt.Errorf("%w: %s", errNoStart, v.why)
		}
		why := v.why
		if err := m.do(deadline, v, others); err != nil {
			why += ": " + err.Error()
		}
		health.set(nil, why)
		if why != said || time.Since(saidAt) > tellEvery {
			m.cfg.Log.Warn(why)
			said, saidAt = why, time.Now()
		}
		if pause(deadline, askInterval); deadline.Err() != nil {
			return verdict{}, fmt.Errorf("%w after %v (--patience): %s", errNoStart,
				m.cfg.Patience, why)
		}
	}
}

// forgetEmpty drops the state that holds only for a disk that was never used.
func (m *Member) forgetEmpty() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.self.added, m.heard = 0, nil
}

func (m *Member) do(ctx context.Context, v verdict, others survey) error {
	switch v.action {
	case discard:
		return clearDisk(m.cfg.Data)
	case remove, add:
		return m.change(ctx, v, others)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
