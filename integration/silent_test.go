package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	rondov1 "rondo/proto/rondo/v1"
)

// silenceLimit bounds whatever waits for a peer that accepts connections and never answers.
const silenceLimit = 75 * time.Second

// patient runs a command that waits for a silent peer, and holds it to one line within the limit.
func patient(t *testing.T, wantCode int, words []string, name string, args ...string) {
	t.Helper()
	began := time.Now()
	code, _, stderr := runCommand(t, filepath.Join(binaries, name), args...)
	oneLine(t, code, wantCode, stderr, words...)
	took := time.Since(began)
	t.Logf("%s %s: %v: %s", name, args[0], took.Round(100*time.Millisecond), stderr)
	if took > silenceLimit {
		t.Errorf("%s %v took %v", name, args, took)
	}
}

// TestSilentEtcd: every command says within its limit which etcd does not answer.
func TestSilentEtcd(t *testing.T) {
	address := silence(t)
	place := []string{"--etcd", address, "--job", "rig"}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"rondo", append([]string{"train"}, append(small(), place...)...)},
		{"rondo", append([]string{"workers"}, place...)},
		{"rondo", append([]string{"scale", "2"}, place...)},
		{"worker", place},
		{"coordinator", place},
	} {
		t.Run(c.name+" "+c.args[0], func(t *testing.T) {
			t.Parallel()
			patient(t, 1, []string{address, "did not answer for 10s", "--etcd"}, c.name, c.args...)
		})
	}
}

// TestSilentStorage: the same for a blob endpoint.
func TestSilentStorage(t *testing.T) {
	t.Parallel()
	url := fmt.Sprintf("s3://bucket?region=nowhere&endpoint=http://%s&use_path_style=true&"+
		"anonymous=true", silence(t))
	for _, c := range []struct {
		name string
		code int
		args []string
	}{
		{"corpus", 2, append([]string{"train", "--corpus", url[:11] + "/text.txt" + url[11:]},
			small()...)},
		{"checkpoints", 1, append([]string{"train", "--checkpoint-dir", url}, small()...)},
		{"verify", 1, []string{"checkpoint", "verify", url}},
		{"generate", 1, []string{"generate", "--checkpoint", url, "--prefix", "a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			patient(t, c.code, []string{"s3://bucket"}, "rondo", c.args...)
		})
	}
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
	patient(t, 1, []string{"scaling the job", "no coordinator answered for 30s"}, "rondo",
		append([]string{"scale", "2"}, r.flags...)...)
	if _, err := r.etcd.client.Delete(request(t), key); err != nil {
		t.Fatal(err)
	}
	r.untilMore(20)
	r.uninterrupted()
	r.survives()
}
