package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/bench/internal/killtrace"
)

// ringOf makes a job whose steps take 0.2 s, with kills at 20, 60 and 100 s. Each kill stops it for
// its cost in seconds, and sets it back by again steps.
func ringOf(name string, again int64, costs ...float64) killtrace.Job {
	j := killtrace.Job{Job: name}
	done, at := int64(0), 0.0
	for i, cost := range costs {
		moment := 20 + 40*float64(i)
		for ; at < moment; at += 0.2 {
			done++
			j.Steps = append(j.Steps, killtrace.Step{At: at, Step: done, Workers: 3})
		}
		j.Kills = append(j.Kills, killtrace.Kill{At: moment, Fresh: cost, Again: again})
		done -= again
		at = moment + cost - 0.2*float64(again)
		for n := range 100 { // 20 s; the first steps have one worker less
			done++
			j.Steps = append(j.Steps, killtrace.Step{At: at, Step: done,
				Workers: 2 + int64(n/10+9)/10})
			at += 0.2
		}
	}
	return j
}

func TestMedian(t *testing.T) {
	w, err := median(ringOf("Rondo", 0, 1, 5, 3), 4, 16)
	if err != nil {
		t.Fatal(err)
	}
	if w.kills != 3 || w.kill.Fresh != 3 || w.kill.At != 100 {
		t.Errorf("of costs 1, 5 and 3 s it chose %+v", w.kill)
	}
	if math.Abs(w.pace-5) > 0.1 {
		t.Errorf("the pace is %v steps a second, not 5", w.pace)
	}
	if first := w.steps[0].At; first < -4 || first > -3.7 {
		t.Errorf("the first step is at %v s", first)
	}
	if s := w.steps[w.joined]; s.Workers != 3 || w.steps[w.joined-1].Workers != 2 {
		t.Errorf("the replacement is said to be in at %+v", s)
	}
	for _, s := range w.steps {
		if (s.At > 0) != (s.Step > 0) {
			t.Errorf("step %+d is at %+.1f s", s.Step, s.At)
		}
	}
}

func TestMedianRefuses(t *testing.T) {
	one := ringOf("Rondo", 0, 1)
	for name, c := range map[string]struct {
		job           killtrace.Job
		before, after float64
		want          string
	}{
		"no kill":     {killtrace.Job{Job: "Rondo"}, 4, 16, "Rondo: no kill"},
		"close kills": {ringOf("Rondo", 0, 1, 1), 4, 50, "two kills within 54 s"},
		"no steps": {killtrace.Job{Job: "Rondo", Kills: one.Kills}, 4, 16,
			"fewer than two steps"},
		"nothing later": {one, 4, 30, "the steps end 20.8 s after the kill"},
	} {
		_, err := median(c.job, c.before, c.after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

func TestDraw(t *testing.T) {
	c := chart{before: 4, after: 16, note: "on <this> machine"}
	jobs := []killtrace.Job{ringOf("rondo train", 0, 0.3), ringOf("torchrun", 7, 9.5)}
	svg, err := c.draw(jobs)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
	}
	for _, text := range []string{"0.30 s to the next new step, no step done again",
		"9.50 s to the next new step, 7 steps done again", "on &lt;this&gt; machine",
		"<circle", ">kill<", ">+10 s<", ">0<"} {
		if !bytes.Contains(svg, []byte(text)) {
			t.Errorf("the picture lacks %q:\n%s", text, svg)
		}
	}
	if _, err := (&chart{before: 4, after: 16}).draw(jobs[:1]); err == nil {
		t.Error("it draws one job")
	}
}

func TestReadTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	const line = `{"job":"a","kills":[{"at":1,"fresh":2,"again":3}],` +
		`"steps":[{"at":0,"step":4,"workers":2}]}`
	for text, want := range map[string]string{
		line + "\n" + line + "\n": "[{a [{1 2 3}] [{0 4 2}]} {a [{1 2 3}] [{0 4 2}]}] <nil>",
		line + "\nhello":          "job 2 in",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		jobs, err := killtrace.Read(path)
		if got := fmt.Sprint(jobs, err); !strings.Contains(got, want) {
			t.Errorf("%q: %s; want %s", text, got, want)
		}
	}
}
