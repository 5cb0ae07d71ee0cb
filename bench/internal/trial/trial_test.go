package trial

import (
	"context"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
)

const events = `{"event":"worker","rank":1,"device":"cpu (b)"}
{"event":"worker","rank":0,"device":"cpu (a)"}
{"event":"generation","generation":1,"world_size":2,"step":0,"reason":"start"}
{"event":"step","step":1,"epoch":0,"loss":3}
{"event":"step","step":2,"epoch":0,"loss":2.5}
{"event":"sample","step":2,"text":"early"}
{"event":"step","step":3,"epoch":1,"loss":1}
{"event":"step","step":4,"epoch":1,"loss":2,` +
	`"compute_seconds":3,"exposed_seconds":2,"waiting_seconds":1}
{"event":"eval","step":4,"loss":1.75,"perplexity":5.75}
{"event":"sample","step":4,"text":"time traveller"}
`

const done = `{"event":"done","step":4,"loss":2,"perplexity":7.4,"tokens_per_second":1234.5}`

func TestRead(t *testing.T) {
	got, err := Read(strings.NewReader(events + done + "\n"))
	want := Result{Steps: 4, Epoch: 1, Perplexity: math.Exp(1.5), TokensPerSecond: 1234.5,
		EvalLoss: 1.75, Sample: "time traveller", Device: "cpu (a)",
		Timings: []Timing{{}, {}, {}, {Compute: 3, Exposed: 2, Waiting: 1}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for name, c := range map[string]struct{ text, want string }{
		"no end":   {events, "after step 4"},
		"no steps": {done, "after step 0"},
		"cut off":  {events + done[:20], "after step 4: not a job's events"},
		"prose":    {"step 1\n", "not a job's events"},
	} {
		if _, err := Read(strings.NewReader(c.text)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	infinite := strings.Replace(events, `"loss":2,`, `"loss":null,`, 1) + done
	if got, err := Read(strings.NewReader(infinite)); err != nil || !math.IsNaN(got.Perplexity) {
		t.Errorf("a loss that is not finite: %+v, %v", got, err)
	}
}

func TestRun(t *testing.T) {
	run := func(script string) (Result, error) {
		return Run(context.Background(), io.Discard, "sh", "-c", script)
	}
	if got, err := run("cat <<'END'\n" + events + done + "\nEND\n"); err != nil || got.Steps != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	for name, c := range map[string]struct{ script, want string }{
		"fails":   {"exit 3", "exit status 3"},
		"unread":  {"echo no events; head -c 1000000 /dev/zero", "not a job's events"},
		"silent":  {"true", "without \"done\""},
		"missing": {"no-such-program-here", "exit status 127"},
	} {
		if _, err := run(c.script); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// A cancelled job is interrupted, not killed, so that it can end its workers.
func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log, ready := io.Pipe()
	go func() {
		_, _ = log.Read(make([]byte, 1))
		cancel()
		_, _ = io.Copy(io.Discard, log)
	}()
	_, err := Run(ctx, ready, "sh", "-c", `
		trap 'echo "{\"event\":\"step\",\"loss\":1}{\"event\":\"done\"}"; exit 0' INT
		echo ready >&2
		while :; do sleep 0.05; done`)
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("%v; want that it was cancelled", err)
	}
}
