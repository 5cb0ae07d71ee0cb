//go:build unix

package rehearsal

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperOrder is the environment variable that makes the test binary carry out a plan and report.
const helperOrder = "RONDO_REHEARSAL_ORDER"

func TestMain(m *testing.M) {
	order := os.Getenv(helperOrder)
	if order == "" {
		os.Exit(m.Run())
	}
	plan, err := Parse(order)
	if err != nil {
		panic(err)
	}
	spend := func(context.Context, int, int) (bool, error) { return true, nil }
	a, err := New(plan, Config{Spend: spend, Log: func(line string) { fmt.Println(line) }})
	if err != nil {
		panic(err)
	}
	a.SetRing(1, 0)
	err = a.At(context.Background(), "load", 1)
	fmt.Println("alive", err)
}

// helper starts the test binary with a plan.
func helper(t *testing.T, order string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), helperOrder+"="+order)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewScanner(out)
}

func TestKillSelf(t *testing.T) {
	c, out := helper(t, "kill rank=0")
	var lines []string
	for out.Scan() {
		lines = append(lines, out.Text())
	}
	_ = c.Wait()
	status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", c.ProcessState)
	}
	if got := strings.Join(lines, "|"); got != "rehearsal: kill rank 0 at step 1, phase load" {
		t.Errorf("said %q", got)
	}
}

func waitStopped(t *testing.T, pid int) {
	t.Helper()
	var status syscall.WaitStatus
	_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
	if err != nil || !status.Stopped() || status.StopSignal() != syscall.SIGSTOP {
		t.Fatalf("not stopped but %v, %v", status, err)
	}
}

func TestStopSelf(t *testing.T) {
	for _, order := range []string{"stop rank=0 for=300ms", "stop rank=0"} {
		c, out := helper(t, order)
		began := time.Now()
		if !out.Scan() || !strings.HasPrefix(out.Text(), "rehearsal: stop") {
			t.Fatalf("said %q", out.Text())
		}
		waitStopped(t, c.Process.Pid)
		if order == "stop rank=0" { // the test must continue it
			if err := c.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		if !out.Scan() || out.Text() != "alive <nil>" {
			t.Fatalf("%s: said %q, %v", order, out.Text(), out.Err())
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); strings.Contains(order, "for") &&
			took < 300*time.Millisecond {
			t.Errorf("%s: only %v", order, took)
		}
	}
}
