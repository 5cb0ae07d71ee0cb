package integration

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEtcdLosesWrites: etcd is restored from a backup that is older than the present ring, or
// emptied, while a job trains. The job goes on from its last step and takes in another worker,
// also under a leader who remembers nothing.
func TestEtcdLosesWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		emptied, follows bool // follows: the leader dies while etcd is away
	}{
		{"Restored", false, false},
		{"Emptied", true, false},
		{"RestoredWithoutItsLeader", false, true},
		{"EmptiedWithoutItsLeader", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{allow: allowance{gaps: true}})
			backup := filepath.Join(t.TempDir(), "backup")
			r.etcd.members[0].kill()
			if !c.emptied {
				if err := os.CopyFS(backup, os.DirFS(r.etcd.configs[0].Dir)); err != nil {
					t.Fatal(err)
				}
			}
			r.etcd.launch(0)
			r.etcd.ready(0)
			r.untilMore(10)
			dead := r.of(1)
			dead.kill()
			r.untilRing(2)
			r.untilMore(5)
			leader := (*daemon)(nil)
			if c.follows {
				leader = r.leader()
			}
			r.etcd.members[0].kill()
			if leader != nil {
				leader.kill()
			}
			r.etcd.configs[0].Dir = backup
			r.etcd.launch(0)
			r.etcd.ready(0)
			r.untilMore(20)
			r.worker(nil)
			r.untilRing(3)
			r.untilMore(20)
			r.stop(dead)
		})
	}
}
