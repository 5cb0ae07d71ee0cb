//go:build unix

package checkpoint

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable, set to "mode folder", makes the test binary run as a writer process.
const childVariable = "RONDO_CHECKPOINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode, root, ok := strings.Cut(os.Getenv(childVariable), " "); ok {
		if err := child(mode, root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(mode, root string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := Open(ctx, root, Config{Job: "opticks", Identity: "sha256:11"})
	if err != nil {
		return err
	}
	switch mode {
	case "limited":
		signal.Ignore(syscall.SIGXFSZ)
		limit := &syscall.Rlimit{Cur: 64 << 10, Max: 64 << 10}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, limit); err != nil {
			return err
		}
		_, err := store.Save(ctx, large(60))
		return err
	case "forever":
		for i := int64(0); ctx.Err() == nil; i++ {
			if _, err := store.Save(ctx, snapshot(50+i%2, float32(i))); err != nil {
				return err
			}
			if i == 1 {
				fmt.Println("saving")
			}
		}
	}
	return ctx.Err()
}

// large returns a snapshot of about 400 kB whose first file is small.
func large(step int64) Snapshot {
	snap := snapshot(step, 2)
	snap.Files[1].Tensors[0] = Tensor{"momentum", []int{100_000}, make([]float32, 100_000)}
	return snap
}

// command runs this test's binary as a child.
func command(t *testing.T, mode, root string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+mode+" "+root)
	return cmd
}

// TestFileSizeLimit saves in a process that may not write files larger than 64 KiB.
func TestFileSizeLimit(t *testing.T) {
	root := saved(t)
	out, err := command(t, "limited", root).CombinedOutput()
	for _, want := range []string{"save checkpoint " + root + "/step-00000060",
		"optimizer.safetensors: file too large", "older checkpoints are untouched: free space"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, output %q, want %q in it", err, out, want)
		}
	}
	wantUntouched(t, root)
}

// wantUntouched checks that the folder holds only the checkpoint of step 50.
func wantUntouched(t *testing.T, root string) {
	t.Helper()
	if list := names(t, root); !slices.Equal(list, []string{"step-00000050"}) {
		t.Errorf("the folder holds %q", list)
	}
	wantLatest(t, root, snapshot(50, 1))
}

// TestKill kills a process that alternately saves two steps, after random times. Afterwards all
// checkpoints must be sound, and the next save must leave no remains.
func TestKill(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	for round := range 12 {
		root := t.TempDir()
		cmd := command(t, "forever", root)
		stdout, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Fatalf("the child says %q, %v", line, err)
		}
		timer := time.NewTimer(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
		<-timer.C
		check(t, cmd.Process.Kill())
		cmd.Wait()
		hidden := slices.ContainsFunc(names(t, root), func(n string) bool { return n[0] == '.' })
		store, _ := localStore(t, root)
		for _, step := range []int64{50, 51} {
			c, err := store.Load(t.Context(), step)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			wantHolds(t, c, snapshot(step, float32(c.Metrics["loss"])))
		}
		_, err = store.Save(t.Context(), snapshot(60, 1))
		check(t, err)
		want := []string{"step-00000050", "step-00000051", "step-00000060"}
		if list := names(t, root); !slices.Equal(list, want) {
			t.Errorf("round %d: the folder holds %q", round, list)
		}
		t.Logf("round %d: a draft was left: %v", round, hidden)
	}
}

// TestListWhileSaving lists while another process saves the steps repeatedly. A step that is being
// replaced must never be missing.
func TestListWhileSaving(t *testing.T) {
	root := t.TempDir()
	cmd := command(t, "forever", root)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the child says %q, %v", line, err)
	}
	store, _ := localStore(t, root)
	for range 100 {
		steps, err := store.Steps(t.Context())
		if err != nil || !slices.Equal(steps, []int64{50, 51}) {
			t.Fatalf("steps %v, %v", steps, err)
		}
	}
}
