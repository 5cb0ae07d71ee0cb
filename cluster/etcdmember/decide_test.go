package etcdmember

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// entry returns a member of a roster. A name that ends in ! has started.
func entry(id types.ID, name, url string) membership.Member {
	m := membership.Member{ID: id, RaftAttributes: membership.RaftAttributes{
		PeerURLs: []string{url}}}
	var begun bool
	if m.Name, begun = strings.CutSuffix(name, "!"); begun {
		m.ClientURLs = []string{"http://client"}
	}
	return m
}

const (
	urlA, urlB, urlC = "http://a:1", "http://b:1", "http://c:1"
	theCluster       = types.ID(7)
)

// three returns the cluster with a under this id.
func three(id types.ID, a, b, c string) roster {
	return rosterWith(theCluster, entry(id, a, urlA), entry(2, b, urlB), entry(3, c, urlC))
}

func rosterWith(cluster types.ID, members ...membership.Member) roster {
	return roster{cluster: cluster, members: members}
}

// TestDecide decides for member a, whose id as a founder is 1.
func TestDecide(t *testing.T) {
	a, b, c := Peer{"a", "a:1"}, Peer{"b", "b:1"}, Peer{"c", "c:1"}
	founders := three(1, "a", "b", "c")
	me := self{name: a.Name, url: urlA, founders: founders}
	mine := disk{used: true, cluster: theCluster, member: 1}
	silent := func(p Peer) view { return view{peer: p, err: errors.New("connection refused")} }
	empty := func(p Peer) view {
		return view{peer: p, empty: true, hearsMe: true, saidEmpty: true,
			roster: roster{cluster: theCluster}}
	}
	deaf := view{peer: c, empty: true, saidEmpty: true, roster: roster{cluster: theCluster}}
	runs := func(p Peer, r roster) view { return view{peer: p, roster: r} }
	heard := func(p Peer, r roster) view { return view{peer: p, roster: r, saidEmpty: true} }
	begun := three(1, "a", "b!", "c")
	full := three(1, "a!", "b!", "c!")
	without := rosterWith(theCluster, entry(2, "b!", urlB), entry(3, "c!", urlC))
	added := three(9, "", "b!", "c!")
	again := three(9, "a!", "b!", "c!")
	moved := rosterWith(theCluster, entry(1, "a!", "http://old:1"), entry(2, "b!", urlB))
	other := roster{cluster: 8, members: full.members}
	agree := func(r roster) survey {
		return survey{views: []view{runs(b, r), runs(c, r)}, agreed: &r}
	}
	say := func(views ...view) survey { return survey{views: views} }
	for _, x := range []struct {
		name   string
		disk   disk
		others survey
		want   action
		why    string
	}{
		{"nobody else is there", disk{}, say(silent(b), silent(c)), wait,
			"b does not answer (connection refused); c does not"},
		{"one is slow", disk{}, say(empty(b), silent(c)), wait, "c does not answer"},
		{"all are there and empty", disk{}, say(empty(b), empty(c)), bootstrap, "all 3 members"},
		{"one has not heard of this one", disk{}, say(empty(b), deaf), wait, "c has not heard"},
		{"one was faster", disk{}, say(heard(b, begun), empty(c)), bootstrap, "founding"},
		{"both were faster", disk{}, say(heard(b, begun), heard(c, begun)), bootstrap, "founding"},
		{"both were faster, and lead", disk{}, survey{agreed: &begun,
			views: []view{heard(b, begun), heard(c, begun)}}, join, "joining as 1"},
		{"one was faster, one is gone", disk{}, say(heard(b, begun), silent(c)), wait,
			"c does not"},
		{"one has data, and never heard that this one began", disk{}, say(runs(b, begun),
			empty(c)), wait, "b has data of"},
		{"two have data, and never heard that this one began", disk{}, agree(begun), remove,
			"may have begun"},
		{"another list of peers", disk{}, say(empty(b), view{peer: c, empty: true,
			roster: roster{cluster: 9}}), wait, "c (c:1) has other --peers"},

		{"its disk is lost", disk{}, agree(full), remove, "replaced"},
		{"... and lost under another id", disk{}, agree(again), remove, "knows this member as 9"},
		{"removed, not yet added", disk{}, agree(without), add, "is added"},
		{"added, perhaps for an earlier start", disk{}, agree(added), remove, "may have begun"},
		{"the others are another cluster", disk{}, agree(other), wait, "does not join it"},
		{"it has another address now", disk{}, agree(moved), remove, "replaced"},
		{"two disks are lost", disk{}, say(runs(b, full), empty(c)), wait, "b has data of"},
		{"two disks are lost, one is away", disk{}, say(silent(b), empty(c)), wait, "b does not"},
		{"two disks are lost, and one was taken in anew before", disk{},
			say(runs(b, added), empty(c)), wait, "delete the data of all members"},
		{"two disks are lost, and one was removed before", disk{},
			say(runs(b, without), empty(c)), wait, "waiting for a majority"},
		{"its disk is lost, and no majority answers", disk{}, say(runs(b, full), silent(c)), wait,
			"waiting for a majority"},
		{"all disks are lost", disk{}, say(empty(b), empty(c)), bootstrap, "none has data"},

		{"all come back with disks", mine, say(silent(b), silent(c)), resume, "from the disk"},
		{"it comes back to a majority", mine, agree(full), resume, "from the disk"},
		{"the others have lost theirs", mine, say(empty(b), empty(c)), resume, "starting as 1"},
		{"an old disk comes back", mine, agree(without), discard, "was removed"},
		{"an old disk comes back after another", mine, agree(again), discard, "of member 1"},
		{"an old disk, and nobody can say so", mine, say(runs(b, again), silent(c)), resume,
			"starting as 1"},
		{"the disk of another cluster", mine, agree(other), refuse, "data of cluster 7, and"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got := decide(me, x.disk, x.others)
			if got.action != x.want || !strings.Contains(got.why, x.why) {
				t.Errorf("%d: %s", got.action, got.why)
			}
			if got.action == remove && (got.id == 0 || got.id == 2 || got.id == 3) {
				t.Errorf("member %v is to be removed", got.id)
			}
			if _, listed := got.roster.find(me); !listed &&
				(got.action == join || got.action == bootstrap) {
				t.Errorf("it is to start as none of %v", got.roster)
			}
		})
	}
}

// TestJoinsAsWhomItHasAdded: a member joins under the id that it had added, and no other.
func TestJoinsAsWhomItHasAdded(t *testing.T) {
	added := three(9, "", "b!", "c!")
	me := self{name: "a", url: urlA, founders: three(1, "a", "b", "c"), added: 9}
	if got := decide(me, disk{}, survey{agreed: &added}); got.action != join {
		t.Errorf("%d: %s", got.action, got.why)
	}
	me.added = 8
	if got := decide(me, disk{}, survey{agreed: &added}); got.action != remove || got.id != 9 {
		t.Errorf("%d: %s", got.action, got.why)
	}
}

// TestNobodyFoundsBesideData tries every combination of two other members' answers. A member with
// an empty disk founds no cluster while another is silent, or has data of a cluster.
func TestNobodyFoundsBesideData(t *testing.T) {
	founders := three(1, "a", "b", "c")
	me := self{name: "a", url: urlA, founders: founders}
	views := map[string]view{
		"silent": {err: errors.New("timeout")},
		"empty": {empty: true, hearsMe: true, saidEmpty: true,
			roster: roster{cluster: theCluster}},
		"deaf":   {empty: true, saidEmpty: true, roster: roster{cluster: theCluster}},
		"begun":  {roster: founders, saidEmpty: true},
		"behind": {roster: founders},
		"member": {roster: rosterWith(theCluster, entry(1, "a!", urlA))},
		"gone":   {roster: rosterWith(theCluster, entry(2, "b!", urlB))},
		"anew":   {roster: rosterWith(theCluster, entry(9, "", urlA))},
		"others": {roster: rosterWith(8, entry(1, "a", urlA))},
	}
	founded := 0
	for first, x := range views {
		for second, y := range views {
			got := decide(me, disk{}, survey{views: []view{x, y}})
			sound := (first == "empty" || first == "begun") &&
				(second == "empty" || second == "begun")
			if (got.action == bootstrap) != sound || got.action != bootstrap && got.action != wait {
				t.Errorf("%s, %s: %d: %s", first, second, got.action, got.why)
			}
			if got.action == bootstrap {
				founded++
			}
		}
	}
	if founded != 4 {
		t.Errorf("founded in %d of the 4 combinations that are sound", founded)
	}
}

func TestParsePeers(t *testing.T) {
	peers, err := ParsePeers([]string{"e-0", "e-1=host:99"}, "e.ns", 2380)
	if err != nil || len(peers) != 2 || peers[0] != (Peer{"e-0", "e-0.e.ns:2380"}) ||
		peers[1] != (Peer{"e-1", "host:99"}) {
		t.Errorf("%v, %v", peers, err)
	}
	for _, wrong := range []string{"", "=a:1", "a=b", "a=:1"} {
		if _, err := ParsePeers([]string{wrong}, "", 1); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func TestNewSaysWhichFlagIsWrong(t *testing.T) {
	sound := func() Config {
		return Config{Name: "a", Peers: []Peer{{"a", "a:1"}, {"b", "b:1"}}, Data: "d", Token: "t",
			Listen: "127.0.0.1", ClientPort: 1, Health: "127.0.0.1:0", Patience: 1}
	}
	if _, err := New(sound()); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Config){
		`--name "c"`:                 func(c *Config) { c.Name = "c" },
		"--token":                    func(c *Config) { c.Token = "" },
		"--data":                     func(c *Config) { c.Data = "" },
		`--listen "x"`:               func(c *Config) { c.Listen = "x" },
		"--client-port 0":            func(c *Config) { c.ClientPort = 0 },
		`--health "x"`:               func(c *Config) { c.Health = "x" },
		"--listen 0.0.0.0:1 is open": func(c *Config) { c.Listen = "0.0.0.0" },
		"--health :0 is open":        func(c *Config) { c.Health = ":0" },
		"--patience 0":               func(c *Config) { c.Patience = 0 },
		"--tls /nowhere":             func(c *Config) { c.TLS = "/nowhere" },
		"b (a:1) is":                 func(c *Config) { c.Peers[1].Address = "a:1" },
		"a (b:1) is":                 func(c *Config) { c.Peers[1].Name = "a" },
		"--peers: b: parse":          func(c *Config) { c.Peers[1].Address = "b:1 2" },
	} {
		cfg := sound()
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
