package etcdmember

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"rondo/internal/certs"
)

const (
	// quotaBytes limits the cluster's data; plans and registrations take kilobytes. A member that
	// fetches the data anew needs this twice, and its log, on a volume of 2 GiB.
	quotaBytes = 512 << 20
	// compactAfter is how long old values of keys are kept.
	compactAfter = time.Hour
	// electionTimeout is how long a leader may be silent, ten heartbeats; followers wait up to
	// twice as long. A busy host or a slow disk may take a moment. A split vote on busy hosts is
	// followed by a second election. Both fit between a renewal and the end of a job's lease of 10
	// s.
	electionTimeout = 1500 * time.Millisecond
	sameLines       = 2               // equal lines of etcd's log per minute
	trustInterval   = 5 * time.Second // between two reads of the authority's files
	openInterval    = time.Second     // between two attempts to let callers in
)

// errNewTrust ends a server that must restart: with another authority, which etcd reads only at its
// start, or to end the connections of revoked certificates.
var errNewTrust = errors.New(certs.TrustFile + " or " + certs.RevokedFile + " has changed")

// trust returns the authorities in the certificate folders, and their lists of revoked
// certificates; nil if a folder is incomplete or cannot be read, or there is no TLS.
func (m *Member) trust() []byte {
	if m.certs == nil {
		return nil
	}
	var all []byte
	for _, folder := range []string{certs.EtcdFolder, certs.PeerFolder} {
		text, err := os.ReadFile(filepath.Join(m.cfg.TLS, folder, certs.TrustFile))
		if err == nil {
			_, err = certs.LoadEtcd(m.cfg.TLS, folder)
		}
		if err != nil {
			return nil
		}
		revoked, err := os.ReadFile(m.revoked(folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		all = slices.Concat(all, text, revoked)
	}
	return all
}

// revoked returns the file of a folder that lists revoked certificates.
func (m *Member) revoked(folder string) string {
	return filepath.Join(m.cfg.TLS, folder, certs.RevokedFile)
}

// serve runs the server until ctx ends. If the server stops earlier, it returns the reason.
func (m *Member) serve(ctx context.Context, how verdict, health *health) error {
	trusted := m.trust()
	server, err := embed.StartEtcd(m.config(how))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	m.forgetEmpty()
	defer m.access.close()
	// Before it is ready, etcd's health handler must not be called: it reads etcd's configuration
	// without a lock while etcd fetches the cluster's data.
	health.set(nil, "started, and not yet part of the cluster")
	defer health.set(nil, "stopped")
	ready, since := server.Server.ReadyNotify(), time.Now()
	opened := false // callers are let in
	retry := time.NewTicker(openInterval)
	defer retry.Stop()
	tell := time.NewTicker(tellEvery)
	defer tell.Stop()
	look := time.NewTicker(trustInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			leave(server)
			return nil
		case <-look.C:
			if now := m.trust(); now != nil && !bytes.Equal(now, trusted) {
				leave(server)
				return errNewTrust
			}
		case <-retry.C:
			if ready == nil && !opened {
				opened = m.open(ctx, server, health)
			}
		case <-ready:
			ready = nil
			opened = m.open(ctx, server, health)
			m.cfg.Log.Info("part of the cluster", "member", server.Server.MemberID().String(),
				"after", time.Since(since).Round(time.Millisecond))
		case <-tell.C:
			if ready != nil {
				m.cfg.Log.Warn("started, and waiting for a majority of the members", "since",
					time.Since(since).Round(time.Second))
			}
		case <-server.Server.StopNotify():
			server.Close()
			return errors.New("etcd has stopped: this member was removed from the cluster, or " +
				"its log says why")
		case err := <-server.Err():
			server.Close()
			return fmt.Errorf("etcd: %w", err)
		}
	}
}

// open lets callers in, and then reports the member ready. It returns false if it must be tried
// again.
func (m *Member) open(ctx context.Context, server *embed.Etcd, health *health) bool {
	if m.certs != nil {
		if err := m.access.open(ctx, server.Server); err != nil {
			health.set(nil, "part of the cluster, and users cannot be made yet: "+err.Error())
			m.cfg.Log.Warn("users cannot be made yet; trying again", "error", err)
			return false
		}
	}
	health.set(server, "")
	return true
}

// leave transfers the leadership before the listeners close, so that clients find a leader at other
// members.
func leave(server *embed.Etcd) {
	_ = server.Server.TryTransferLeadershipOnShutdown()
	server.Close()
}

func (m *Member) config(how verdict) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = m.cfg.Name, m.cfg.Data
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(m.etcdLog())
	peer, _ := url.Parse(m.self.url)
	c.ListenPeerUrls = []url.URL{{Scheme: m.scheme, Host: net.JoinHostPort(m.cfg.Listen, m.port)}}
	c.AdvertisePeerUrls = []url.URL{*peer}
	c.ListenClientUrls = []url.URL{{Scheme: m.scheme,
		Host: net.JoinHostPort(m.cfg.Listen, strconv.Itoa(m.cfg.ClientPort))}}
	c.AdvertiseClientUrls = []url.URL{m.clientURL()}
	if m.certs != nil {
		c.ClientTLSInfo = m.tlsInfo(certs.EtcdFolder)
		c.PeerTLSInfo = m.tlsInfo(certs.PeerFolder)
		m.access.guard(c)
	}
	c.InitialClusterToken, c.ClusterState = m.cfg.Token, embed.ClusterStateFlagExisting
	if how.action == bootstrap {
		c.ClusterState = embed.ClusterStateFlagNew
	}
	c.InitialCluster = m.initialCluster(how)
	c.StrictReconfigCheck = true
	c.QuotaBackendBytes = quotaBytes
	c.AutoCompactionMode = embed.CompactorModePeriodic
	c.AutoCompactionRetention = compactAfter.String()
	c.ElectionMs = uint(electionTimeout / time.Millisecond)
	c.TickMs = c.ElectionMs / 10
	c.EnableGRPCGateway = false
	return c
}

// tlsInfo returns etcd's configuration of a listener with the certificate in a folder.
func (m *Member) tlsInfo(folder string) transport.TLSInfo {
	dir := filepath.Join(m.cfg.TLS, folder)
	info := transport.TLSInfo{
		CertFile:       filepath.Join(dir, certs.CertFile),
		KeyFile:        filepath.Join(dir, certs.KeyFile),
		TrustedCAFile:  filepath.Join(dir, certs.TrustFile),
		ClientCertAuth: true,
		// Pods' addresses change and are in no certificate. The authority vouches for callers.
		SkipClientSANVerify: true,
	}
	// With a list that is not there or cannot be read etcd serves nobody.
	_, err := os.Stat(m.revoked(folder))
	switch has := !errors.Is(err, fs.ErrNotExist); {
	case has:
		info.CRLFile = m.revoked(folder)
		m.lists[folder] = true
	case m.lists[folder]:
		delete(m.lists, folder)
		m.cfg.Log.Warn("a list of revoked certificates is gone: what it listed is accepted again, "+
			"if its authority is still trusted", "file", m.revoked(folder))
	}
	return info
}

// etcdLog returns etcd's log. It limits repeated lines, such as that a peer is away, to a few per
// minute.
func (m *Member) etcdLog() *zap.Logger {
	level := zapcore.WarnLevel
	if m.cfg.Verbose {
		level = zapcore.InfoLevel
	}
	words := zap.NewProductionEncoderConfig()
	words.EncodeTime = zapcore.RFC3339TimeEncoder
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(words), zapcore.Lock(os.Stderr), level)
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Minute, sameLines, 0)).Named("etcd")
}

// initialCluster returns the members for etcd, which ignores them if it has a disk.
func (m *Member) initialCluster(how verdict) string {
	var entries []string
	for _, member := range how.roster.members {
		name := member.Name
		switch known, _ := how.roster.find(m.self); {
		case member.ID == known.ID:
			name = m.self.name
		case name == "" || name == m.self.name:
			name = "member-" + member.ID.String()
		}
		for _, u := range member.PeerURLs {
			entries = append(entries, name+"="+u)
		}
	}
	if len(entries) == 0 {
		return m.self.name + "=" + m.self.url
	}
	return strings.Join(entries, ",")
}
