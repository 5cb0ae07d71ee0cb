package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// runIn executes rondo in a folder.
func runIn(t *testing.T, dir string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "rondo"), args...)
	var out, errs strings.Builder
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = environment(t), dir, &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// TestAJobKeepsItsModel: without --checkpoint-dir it is in a folder of its own under ./runs, which
// the job names at its start and its end, and from which the other commands take it.
func TestAJobKeepsItsModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	job := append([]string{"train"}, small("--checkpoint-dir", "", "--checkpoint-every", "10",
		"--validation-fraction", "0.1")...)
	code, stdout, stderr := runIn(t, dir, job...)
	folders, err := filepath.Glob(filepath.Join(dir, "runs", "rondo-*"))
	if code != 0 || err != nil || len(folders) != 1 {
		t.Fatalf("exit code %d, folders %v\n%s%s", code, folders, stdout, stderr)
	}
	for _, want := range []string{"checkpoints go to " + folders[0] + "\n",
		"checkpoint: " + filepath.Join(folders[0], "step-00000020") + "\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the job does not say %q:\n%s", want, stdout)
		}
	}
	newest := "the newest run: " + filepath.Join("runs", filepath.Base(folders[0])) + ", step 20\n"
	for _, command := range []string{"generate --tokens 5", "eval --corpus builtin:opticks",
		"checkpoint list", "checkpoint verify", "checkpoint show"} {
		code, stdout, stderr := runIn(t, dir, strings.Fields(command)...)
		if code != 0 || !strings.HasPrefix(stderr, newest) || stdout == "" {
			t.Errorf("%s: exit code %d\n%s%s", command, code, stdout, stderr)
		}
	}
	shown(t, dir, folders[0])
}

// shown compares the output of `rondo checkpoint show` with the run, and runs the command in it
// that trains further.
func shown(t *testing.T, dir, folder string) {
	t.Helper()
	code, stdout, stderr := runIn(t, dir, "checkpoint", "show", folder, "--json")
	var s struct {
		Cell              string
		Parameters, Steps int
		TotalSteps        int `json:"total_steps"`
		TrainTokens       int `json:"train_tokens"`
		ValidationTokens  int `json:"validation_tokens"`
		Seconds, Loss     float64
		GoOn              []string `json:"go_on"`
	}
	if err := json.Unmarshal([]byte(stdout), &s); code != 0 || err != nil || stderr != "" {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
	if s.Cell != "lstm" || s.Parameters < 4*24*24 || s.Steps != 20 || s.TotalSteps != 20 ||
		s.TrainTokens+s.ValidationTokens != 20000 || s.ValidationTokens != 2000 ||
		!(s.Seconds > 0) || !(s.Loss > 0) {
		t.Errorf("%+v", s)
	}
	code, stdout, stderr = runIn(t, dir, s.GoOn[1:]...)
	if code != 0 || !strings.Contains(stdout, "done after step 40") ||
		!strings.Contains(stdout, "after step 20:") {
		t.Errorf("%v: exit code %d\n%s%s", s.GoOn, code, stdout, stderr)
	}
}

// TestTwoRunsOfOneName: jobs that start together do not share a folder or a page.
func TestTwoRunsOfOneName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ended := make(chan string, 2)
	for range 2 {
		go func() {
			code, stdout, stderr := runIn(t, dir, append([]string{"train", "--json"},
				small("--checkpoint-dir", "")...)...)
			if code != 0 {
				stdout = stderr
			}
			ended <- stdout
		}()
	}
	seen := map[string]bool{}
	for range 2 {
		for line := range strings.Lines(<-ended) {
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if e.name() == "folder" {
				seen[e.text("path")] = true
			}
		}
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("folders %v", seen)
	}
	for folder := range seen {
		if code, out, _ := run(t, "checkpoint", "verify", folder); code != 0 {
			t.Errorf("%s: %s", folder, out)
		}
	}
}

// TestAJobThatKeepsNoModel: it leaves no file, whether it ends or is stopped, and reports that.
func TestAJobThatKeepsNoModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, output := startPlain(t, dir, endless("--checkpoint-dir", "none")...)
	awaitText(t, output, "the model is not kept: --checkpoint-dir none")
	awaitText(t, output, "epoch")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, awaitText(t, output, ""))
	}
	text := awaitText(t, output, "stopped after step ")
	if !strings.Contains(text, "\nthe model was not kept") || strings.Contains(text, "to go on") {
		t.Errorf("the end does not say that nothing was saved:\n%s", text)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	code, _, stderr := runIn(t, dir, "train", "--corpus", "nowhere.txt")
	oneLine(t, code, 2, stderr, "nowhere.txt")
	if left, err = os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a job that was refused has left %v, %v", left, err)
	}
}

// TestThePageOfATraining: it is on loopback, shows the job while that trains, and goes with it.
func TestThePageOfATraining(t *testing.T) {
	t.Parallel()
	p := start(t, endless()...)
	url := p.until("the page", func(e event) bool { return e.name() == "page" }).text("url")
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Fatalf("the page is at %s", url)
	}
	p.untilStep(3)
	var state struct {
		Job      string
		Progress struct{ Step int }
		Workers  []struct{ State string }
	}
	if err := json.Unmarshal([]byte(page(t, url+"/api/state")), &state); err != nil {
		t.Fatal(err)
	}
	if state.Job != "rondo" || state.Progress.Step < 3 {
		t.Errorf("the page shows %+v", state)
	}
	if html := page(t, url+"/"); !strings.Contains(html, "<script>") {
		t.Errorf("no page: %.200s", html)
	}
	// Its address is in use: the next job reports that and trains.
	other := start(t, append([]string{"train", "--dashboard", strings.TrimPrefix(url, "http://")},
		small()...)...)
	if pages := named(other.succeed(), "page"); len(pages) > 0 ||
		!strings.Contains(other.stderr.String(), "trains without a web page: --dashboard ") {
		t.Errorf("pages %v\n%s", pages, other.stderr)
	}
	off := start(t, append([]string{"train", "--dashboard", "off"}, small()...)...)
	if pages := named(off.succeed(), "page"); len(pages) > 0 {
		t.Errorf("pages %v", pages)
	}
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.succeed()
}

func page(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
