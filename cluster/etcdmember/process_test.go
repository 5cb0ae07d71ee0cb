package etcdmember

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rondo/internal/port"
)

// memberVariable makes the test binary run as a member.
const memberVariable = "RONDO_TEST_ETCD_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(memberVariable); text != "" {
		os.Exit(runMember(text))
	}
	os.Exit(m.Run())
}

func runMember(text string) int {
	var cfg Config
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		var member *Member
		if member, err = New(cfg); err == nil {
			err = member.Run(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// deadline limits a test's waits. It is long, because the machine may be busy.
const deadline = 90 * time.Second

// process is a member in a process of its own.
type process struct {
	cfg    Config
	client string
	cmd    *exec.Cmd
	ended  chan error

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.log.String(), text)
}

// testCluster is a cluster of members on loopback.
type testCluster struct {
	t       *testing.T
	tls     *tls.Config // of its clients
	members []*process
}

func newCluster(t *testing.T, n int, folder string) *testCluster {
	t.Helper()
	c := &testCluster{t: t}
	var peers []Peer
	scheme := "http"
	if folder != "" {
		scheme = "https"
	}
	for i := range n {
		name := fmt.Sprint("e", i)
		peers = append(peers, Peer{Name: name, Address: port.ForTest(t).Address()})
		client := port.ForTest(t)
		p := &process{client: scheme + "://" + client.Address(), cfg: Config{Name: name,
			TLS: folder, Token: "rondo", Data: filepath.Join(t.TempDir(), name),
			Listen: "127.0.0.1", ClientPort: client.Number(),
			Health: port.ForTest(t).Address(), Patience: deadline}}
		c.members = append(c.members, p)
	}
	for _, p := range c.members {
		p.cfg.Peers = peers
	}
	t.Cleanup(func() {
		for _, p := range c.members {
			if p.cmd != nil {
				c.end(p, syscall.SIGKILL)
			}
			if t.Failed() {
				t.Logf("%s:\n%s", p.cfg.Name, p.log.String())
			}
		}
	})
	return c
}

func (c *testCluster) start(members ...*process) {
	c.t.Helper()
	for _, p := range members {
		text, err := json.Marshal(p.cfg)
		if err != nil {
			c.t.Fatal(err)
		}
		p.cmd = exec.Command(os.Args[0])
		p.cmd.Env = append(os.Environ(), memberVariable+"="+string(text))
		p.cmd.Stdout, p.cmd.Stderr = p, p
		p.ended = make(chan error, 1)
		if err := p.cmd.Start(); err != nil {
			c.t.Fatal(err)
		}
		go func(cmd *exec.Cmd, ended chan error) { ended <- cmd.Wait() }(p.cmd, p.ended)
	}
}

func (p *process) address() string {
	i := slices.IndexFunc(p.cfg.Peers, func(o Peer) bool { return o.Name == p.cfg.Name })
	return p.cfg.Peers[i].Address
}

func (c *testCluster) end(p *process, s syscall.Signal) error {
	_ = p.cmd.Process.Signal(s)
	select {
	case err := <-p.ended:
		p.cmd = nil
		return err
	case <-time.After(deadline):
		_ = p.cmd.Process.Kill()
		c.t.Errorf("%s did not end", p.cfg.Name)
		return nil
	}
}

func (c *testCluster) lose(p *process) {
	c.t.Helper()
	_ = c.end(p, syscall.SIGKILL)
	if err := os.RemoveAll(p.cfg.Data); err != nil {
		c.t.Fatal(err)
	}
}

func (c *testCluster) until(what string, is func() bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for ; time.Since(begin) < deadline; time.Sleep(20 * time.Millisecond) {
		if is() {
			return time.Since(begin)
		}
	}
	c.t.Fatalf("after %v not yet: %s", deadline, what)
	return 0
}

func (p *process) get(path string) (status int, body string) {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + p.cfg.Health + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

func (p *process) healthy() bool {
	status, _ := p.get("/health")
	return status == http.StatusOK
}

// allHealthy waits until these members serve, and returns how long it took.
func (c *testCluster) allHealthy(members ...*process) time.Duration {
	c.t.Helper()
	var took time.Duration
	for _, p := range members {
		took += c.until(p.cfg.Name+" is healthy", p.healthy)
	}
	return took
}

func (c *testCluster) dial(members ...*process) *clientv3.Client {
	c.t.Helper()
	cfg := clientv3.Config{DialTimeout: deadline, Logger: zap.NewNop(), TLS: c.tls}
	for _, p := range members {
		cfg.Endpoints = append(cfg.Endpoints, p.client)
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *testCluster) put(client *clientv3.Client, key, value string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), deadline)
	defer cancel()
	if _, err := client.Put(ctx, key, value); err != nil {
		c.t.Fatal(err)
	}
}

// expect reads a key from one member, linearizably.
func (c *testCluster) expect(p *process, key, want string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), deadline)
	defer cancel()
	answer, err := c.dial(p).Get(ctx, key)
	if err != nil {
		c.t.Fatal(err)
	}
	got := ""
	if len(answer.Kvs) > 0 {
		got = string(answer.Kvs[0].Value)
	}
	if got != want {
		c.t.Errorf("%s: %s is %q, not %q", p.cfg.Name, key, got, want)
	}
}

// ids returns the members' ids by name, and fails unless all n have started.
func (c *testCluster) ids(client *clientv3.Client, n int) map[string]uint64 {
	c.t.Helper()
	ids := map[string]uint64{}
	c.until(fmt.Sprintf("%d members have started", n), func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), deadline)
		defer cancel()
		answer, err := client.MemberList(ctx)
		if err != nil {
			return false
		}
		clear(ids)
		begun := 0
		for _, m := range answer.Members {
			ids[m.Name] = m.ID
			if len(m.ClientURLs) > 0 {
				begun++
			}
		}
		return begun == n && len(answer.Members) == n
	})
	return ids
}
