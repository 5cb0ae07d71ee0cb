package integration

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	rondov1 "rondo/proto/rondo/v1"
)

// silenceLimit bounds whatever waits for a peer that accepts connections and never answers.
const silenceLimit = 75 * time.Second

// inquiry is a command that asks something of a silent peer.
type inquiry struct {
	name  string   // of the binary
	args  []string // of the command
	code  int      // that it exits with
	words []string // of its one line
}

// patient runs a command that waits for a silent peer, and holds it to one line within the limit.
func (q inquiry) patient(t *testing.T) {
	t.Helper()
	began := time.Now()
	code, _, stderr := runCommand(t, filepath.Join(binaries, q.name), q.args...)
	took := time.Since(began)
	oneLine(t, code, q.code, stderr, q.words...)
	t.Logf("%s %s: %v: %s", q.name, q.args[0], took.Round(100*time.Millisecond), stderr)
	if took > silenceLimit {
		t.Errorf("%s %v took %v", q.name, q.args, took)
	}
}

// TestSilentPeers: every command that waits for an etcd or an object store reports in time which
// one does not answer. They all wait at once.
func TestSilentPeers(t *testing.T) {
	t.Parallel()
	etcd, store := silence(t), silence(t)
	place := []string{"--etcd", etcd, "--job", "rig"}
	query := fmt.Sprintf("?region=nowhere&endpoint=http://%s&use_path_style=true&anonymous=true",
		store)
	bucket := "s3://bucket" + query
	noEtcd := []string{etcd, "did not answer for 10s", "--etcd"}
	noStore := []string{"s3://bucket"}
	var asking sync.WaitGroup
	for _, q := range []inquiry{
		{"rondo", append([]string{"train"}, append(small(), place...)...), 1, noEtcd},
		{"rondo", append([]string{"workers"}, place...), 1, noEtcd},
		{"rondo", append([]string{"scale", "2"}, place...), 1, noEtcd},
		{"worker", place, 1, noEtcd},
		{"coordinator", place, 1, noEtcd},
		{"rondo", append([]string{"train", "--corpus", "s3://bucket/text.txt" + query},
			small()...), 1, noStore},
		{"rondo", append([]string{"train"}, small("--checkpoint-dir", bucket)...), 1, noStore},
		{"rondo", []string{"checkpoint", "verify", bucket}, 1, noStore},
		{"rondo", []string{"generate", "--checkpoint", bucket, "--prefix", "a"}, 1, noStore},
	} {
		asking.Go(func() { q.patient(t) })
	}
	asking.Wait()
}

// TestSilentNeighbour: a worker that is registered and accepts connections, but never answers, is
// put out of the ring.
func TestSilentNeighbour(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{flags: []string{"--max-workers", "4"}})
	answer, err := r.etcd.client.Get(request(t), r.key("members/"), clientv3.WithPrefix(),
		clientv3.WithLimit(1))
	if err != nil {
		t.Fatal(err)
	}
	member := &rondov1.Member{}
	if err := proto.Unmarshal(answer.Kvs[0].Value, member); err != nil {
		t.Fatal(err)
	}
	member.Id, member.Address, member.Pid = "silent", silence(t), 1
	value, err := proto.Marshal(member)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.etcd.client.Put(request(t), r.key("members/silent"), string(value)); err != nil {
		t.Fatal(err)
	}
	ring := r.untilRing(3, "worker silent")
	t.Logf("event: %s", ring.text("reason"))
	r.untilMore(10)
	r.stop()
}

// TestSilentCoordinator: a leader that keeps its lease and never answers does not stop the
// training. Whoever asks it something hears so in time, and when another leads all is well.
func TestSilentCoordinator(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{flags: []string{"--inject",
		"delay rank=* for=100ms phase=forward times=0"}}) // it lasts longer than all patience
	address := silence(t)
	value, err := proto.Marshal(&rondov1.Leader{Id: "silent", Address: address})
	if err != nil {
		t.Fatal(err)
	}
	key := r.key("leader/silent")
	if _, err := r.etcd.client.Put(request(t), key, string(value)); err != nil {
		t.Fatal(err)
	}
	r.depose()
	await(t, "the silent one leads", func() bool { return r.candidates()[0].id == "silent" })
	inquiry{"rondo", append([]string{"scale", "2"}, r.flags...), 1,
		[]string{"scaling the job", "no coordinator answered for 30s"}}.patient(t)
	if _, err := r.etcd.client.Delete(request(t), key); err != nil {
		t.Fatal(err)
	}
	r.untilMore(20)
	r.uninterrupted()
	r.survives(1)
}
