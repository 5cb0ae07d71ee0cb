package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"rondo/cluster"
)

func member(id, host string, pid int) cluster.Member {
	return cluster.Member{ID: id, Host: host, PID: pid, Device: "cpu", Address: host + ":1"}
}

// viewOf is a job of two workers in a ring, of whom one is gone, and three others.
func viewOf() cluster.View {
	w1, w2 := member("w1", "alpha", 10), member("w2", "beta", 2000)
	return cluster.View{
		Plan: cluster.Plan{Generation: 3, Rings: 2, Members: []cluster.Member{w1, w2},
			LaneEnds: []cluster.Lane{4, 8}, Phase: cluster.Running,
			Reason:  "more workers have appeared; 2 workers go on",
			Evicted: []cluster.Eviction{{ID: "w3", Reason: "too slow", Remedy: cluster.Wait}}},
		Members: []cluster.Member{w1, member("w3", "gamma", 30), member("w4", "delta", 40)},
		Leader:  cluster.Leader{ID: "c1", Address: "alpha:7"},
	}
}

func TestWorkersTable(t *testing.T) {
	inContainer := viewOf()
	inContainer.Plan.Members[1].PID = -620050943
	job := cluster.Job{Workers: 2, MinWorkers: 1, Lanes: 8}
	var out strings.Builder
	if err := jobStateOf("demo", job, inContainer).print(&out); err != nil {
		t.Fatal(err)
	}
	want := `job demo: running, generation 3, 2 in the ring (1 to 2), led by c1 at alpha:7
more workers have appeared; 2 workers go on
RANK  STATE    ID  HOST   PID  DEVICE  LANES   NOTE
0     ring     w1  alpha  10   cpu     [0, 4)
1     lost     w2  beta   -    cpu     [4, 8)
-     evicted  w3  gamma  30   cpu     -       too slow
-     spare    w4  delta  40   cpu     -
`
	got := out.String()
	for strings.Contains(got, " \n") {
		got = strings.ReplaceAll(got, " \n", "\n")
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestWorkersOfAJobThatHasEnded: workers that left at the job's end are not called lost.
func TestWorkersOfAJobThatHasEnded(t *testing.T) {
	view := viewOf()
	view.Plan.Phase, view.Plan.Reason = cluster.Ended, "all steps are done"
	var states []string
	for _, w := range jobStateOf("demo", cluster.Job{Workers: 2, Lanes: 8}, view).Workers {
		states = append(states, w.State)
	}
	if got := strings.Join(states[:2], " "); got != "ring left" {
		t.Errorf("the ring of a job that has ended: %s", got)
	}
}

func TestWorkersOfAJobThatForms(t *testing.T) {
	view := cluster.View{Members: []cluster.Member{member("w1", "alpha", 10)}}
	state := jobStateOf("demo", cluster.Job{Workers: 3, MinWorkers: 2, Lanes: 8}, view)
	var out strings.Builder
	if err := state.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"job demo: forming, generation 0, 0 in the ring (2 to 3), " +
		"nobody leads it\nRANK", "-     joining  w1"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is not in\n%s", part, out.String())
		}
	}
}

func TestWorkersAsJSON(t *testing.T) {
	job := cluster.Job{Workers: 2, MinWorkers: 1, MaxWorkers: 6, Lanes: 8}
	text, err := json.Marshal(jobStateOf("demo", job, viewOf()))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Phase   string
		Limit   int
		Workers []map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Phase != "running" || got.Limit != 6 || len(got.Workers) != 4 {
		t.Errorf("%s", text)
	}
	first := map[string]any{"rank": 0.0, "state": "ring", "id": "w1", "host": "alpha",
		"pid": 10.0, "device": "cpu", "address": "alpha:1", "lanes": []any{0.0, 4.0}}
	if !reflect.DeepEqual(got.Workers[0], first) {
		t.Errorf("the first is %v, want %v", got.Workers[0], first)
	}
	if w := got.Workers[3]; w["state"] != "joining" || w["rank"] != nil || w["lanes"] != nil {
		t.Errorf("the last is %v: below the limit it is about to join", w)
	}
}
