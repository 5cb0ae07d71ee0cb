package etcdmember

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"rondo/internal/port"
)

// asker returns a member with an empty disk that listens and knows these others.
func asker(t *testing.T, others ...Peer) *Member {
	t.Helper()
	m, err := New(Config{Name: "a", Token: "t", Data: t.TempDir(), Listen: "127.0.0.1",
		Peers:      append([]Peer{{"a", port.ForTest(t).Address()}}, others...),
		ClientPort: 1, Health: "127.0.0.1:0", Patience: deadline})
	if err != nil {
		t.Fatal(err)
	}
	standIn, err := m.listenPlaceholder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standIn.close)
	return m
}

func expectAnswers(t *testing.T, m *Member, want action, words ...string) {
	t.Helper()
	got := decide(m.self, disk{}, m.ask(t.Context()))
	if got.action != want {
		t.Errorf("%d: %s", got.action, got.why)
	}
	for _, word := range words {
		if !strings.Contains(got.why, word) {
			t.Errorf("it does not say %q: %s", word, got.why)
		}
	}
}

// other starts a member with an empty disk, as m has it in --peers, but with the given name and
// token.
func other(t *testing.T, m *Member, name, token string) {
	t.Helper()
	cfg := m.cfg
	cfg.Name, cfg.Token = name, token
	o, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	standIn, err := o.listenPlaceholder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standIn.close)
	o.ask(t.Context())
}

// elsewhere returns the same address under another host name.
func elsewhere(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return net.JoinHostPort("localhost", port)
}

// TestNobodyAnswersForAnother: a lost member's address may lead to another member, even to the one
// that asks. That one's empty disk does not count for the lost member.
func TestNobodyAnswersForAnother(t *testing.T) {
	t.Parallel()
	address := port.ForTest(t).Address()
	m := asker(t, Peer{"b", address})
	expectAnswers(t, m, wait, "b does not answer (dial tcp")
	t.Run("itself", func(t *testing.T) {
		m := asker(t, Peer{"b", port.ForTest(t).Address()})
		m.cfg.Peers[1].Address = elsewhere(m.cfg.Peers[0].Address)
		expectAnswers(t, m, wait, `b does not answer (a with --token "t" answers at 127.0.0.1:`)
	})
	t.Run("another member", func(t *testing.T) {
		m := asker(t, Peer{"b", port.ForTest(t).Address()}, Peer{"c", port.ForTest(t).Address()})
		other(t, m, "b", "t")
		m.cfg.Peers[2].Address = elsewhere(m.cfg.Peers[1].Address)
		expectAnswers(t, m, wait, `c does not answer (b with --token "t" answers at 127.0.0.1:`)
	})
	t.Run("another cluster's", func(t *testing.T) {
		m := asker(t, Peer{"b", port.ForTest(t).Address()})
		other(t, m, "b", "another")
		expectAnswers(t, m, wait, `b does not answer (b with --token "another" answers`)
	})
	other(t, m, "b", "t")
	expectAnswers(t, m, bootstrap)
}

// TestOneServerIsNotTwo: one etcd that answers at two addresses counts for neither member.
func TestOneServerIsNotTwo(t *testing.T) {
	t.Parallel()
	m := asker(t, Peer{"b", port.ForTest(t).Address()}, Peer{"c", port.ForTest(t).Address()})
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+membersPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(clusterHeader, m.self.founders.cluster.String())
		_ = json.NewEncoder(w).Encode(m.self.founders.members)
	})
	var at [2]string
	for i := range at {
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		at[i] = server.Listener.Addr().String()
	}
	m.cfg.Peers[1].Address, m.cfg.Peers[2].Address = at[0], elsewhere(at[0])
	expectAnswers(t, m, wait, "b does not answer (one process answers for it and another member",
		"c does not answer (one process")
	m.cfg.Peers[2].Address = at[1]
	expectAnswers(t, m, wait, "b has data", "c has data")
	m.heard = []string{"b", "c"}
	expectAnswers(t, m, bootstrap)
	m.forgetEmpty()
	expectAnswers(t, m, wait, "b has data", "c has data")
}

// TestEndsThatFollowEachOther: the end of a server that ran for long does not count with earlier
// ones, and a restart for a new authority does not count.
func TestEndsThatFollowEachOther(t *testing.T) {
	failed := errors.New("removed")
	for _, x := range []struct {
		served time.Duration
		err    error
		want   int
	}{
		{time.Second, failed, maxRestarts + 1},
		{soundAfter, failed, 1},
		{time.Second, errNewTrust, maxRestarts},
	} {
		if got := count(maxRestarts, x.served, x.err); got != x.want {
			t.Errorf("%v after %v: %d, not %d", x.err, x.served, got, x.want)
		}
	}
}

// TestRoomOnTheVolume: a member that fetches the data anew needs less than a volume of 2 GiB.
func TestRoomOnTheVolume(t *testing.T) {
	m := asker(t)
	const segments, segment = 5 + 1, 64 << 20 // of the log; one is created ahead
	most := 2*m.config(verdict{}).QuotaBackendBytes + segments*segment
	if volume := int64(2 << 30); most > volume*3/4 {
		t.Errorf("%d of %d bytes", most, volume)
	}
}

// TestTwoElectionsFitIntoALease: a lease is renewed after a third of its time. A split vote takes
// up to twice the election timeout.
func TestTwoElectionsFitIntoALease(t *testing.T) {
	if took, left := 2*2*electionTimeout, ttl*2/3; took >= left {
		t.Errorf("two elections take up to %v, and a lease may have %v left", took, left)
	}
}
