// Package etcdmember is a member of an etcd cluster that heals itself: it runs the embedded etcd
// server, and decides at its start how. A member whose disk is empty asks the others: it founds a
// cluster only when every one of them is there and as empty as itself, and otherwise has a majority
// take it in anew, in place of what it was before. It stores nothing of Rondo's and knows none of
// its jobs. It links the etcd server, so the lean commands do not import it.
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
	askInterval = time.Second // between two rounds of questions to the others
	tellEvery   = 30 * time.Second
	maxRestarts = 5 // of the server that follow each other within one process
	// A server that has run for this long was sound: what ends it is counted anew.
	soundAfter = 10 * time.Minute
)

// Peer is a member as all of them are told of it.
type Peer struct {
	Name    string
	Address string // host:port that the others reach
}

// Config says which member of which cluster a process is.
type Config struct {
	Name       string
	Peers      []Peer // all members with which the cluster begins, this one among them
	Token      string // tells the cluster from others whose members have the same names
	Data       string // the folder that is this member's disk
	Listen     string // the IP address to listen on
	ClientPort int
	Health     string        // host:port of plain HTTP: health and metrics
	TLS        string        // folder as certs has it; empty: no TLS
	Patience   time.Duration // how long to wait for the others before giving up
	Verbose    bool          // have etcd say what it does
	Log        *slog.Logger
}

// Member is a member that can be run.
type Member struct {
	cfg    Config
	self   self
	port   string // of the peers' listener
	certs  *certs.Identity
	scheme string

	mu    sync.Mutex
	heard []string // who has said to this process, since it has no data, that it has none
}

// ParsePeers reads NAME or NAME=HOST:PORT; without an address it is NAME.domain and the port.
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

// New checks the configuration. The errors name the flags of `rondo etcd`.
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
	m := &Member{cfg: cfg, scheme: "http"}
	if m.cfg.Log == nil {
		m.cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.TLS != "" {
		var err error
		if m.certs, err = certs.Load(cfg.TLS); err != nil {
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

// founders is the cluster as it is when the members of --peers found it: the ids follow from the
// addresses and the token, so that all who begin with the same ones found the same one.
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

// clientURL is where clients reach this member: on the host by which its peers know it.
func (m *Member) clientURL() url.URL {
	parsed, err := url.Parse(m.self.url)
	if err != nil {
		panic(fmt.Sprintf("etcdmember: %s was a URL before: %v", m.self.url, err))
	}
	return url.URL{Scheme: m.scheme,
		Host: net.JoinHostPort(parsed.Hostname(), strconv.Itoa(m.cfg.ClientPort))}
}

// Run is the member until ctx ends; then it hands its leadership on, closes, and returns nil.
func (m *Member) Run(ctx context.Context) error {
	health, err := m.openHealth()
	if err != nil {
		return err
	}
	defer health.close()
	for ends := 0; ; {
		how, err := m.gather(ctx, health)
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
		m.cfg.Log.Warn("the server has stopped; once more from the beginning", "reason", err)
		pause(ctx, askInterval)
	}
}

// count counts the ends of the server that follow each other, and are no wish of its own.
func count(ends int, served time.Duration, err error) int {
	switch {
	case errors.Is(err, errNewTrust):
		return ends
	case served >= soundAfter:
		return 1
	}
	return ends + 1
}

// errNoStart is an error for which trying again in this process is no remedy.
var errNoStart = errors.New("this member cannot start")

// gather takes one step after the other towards the cluster, until the server can be started.
func (m *Member) gather(ctx context.Context, health *health) (verdict, error) {
	deadline, cancel := context.WithTimeout(ctx, m.cfg.Patience)
	defer cancel()
	var standIn *waiting
	defer func() { standIn.close() }()
	said, saidAt := "", time.Time{}
	for {
		found, err := readDisk(m.cfg.Data)
		if err != nil {
			return verdict{}, fmt.Errorf("%w: %w", errNoStart, err)
		}
		if found.used {
			m.begun()
		} else if standIn == nil {
			if standIn, err = m.listenWaiting(); err != nil {
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
			return verdict{}, fmt.Errorf("%w, and has waited for %v (--patience): %s", errNoStart,
				m.cfg.Patience, why)
		}
	}
}

// begun forgets what holds for a disk that was never used.
func (m *Member) begun() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.self.added, m.heard = 0, nil
}

// do takes a step that is not yet the start.
func (m *Member) do(ctx context.Context, v verdict, others survey) error {
	switch v.action {
	case discard:
		return clearDisk(m.cfg.Data)
	case remove, add:
		return m.change(ctx, v, others)
	}
	return nil
}

// pause waits, but no longer than ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
