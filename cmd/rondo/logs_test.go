package main

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"rondo/internal/app"
	"rondo/k8s/kube"
)

func TestLogLinesBeginWithTheirSource(t *testing.T) {
	var out strings.Builder
	p := logPrinter{out: &out, colour: map[kube.LogSource]int{}}
	for _, s := range []kube.LogSource{
		{Component: kube.Worker, Index: 0, Pod: "book-worker-0-abcde"},
		{Component: kube.Coordinator, Index: -1, Pod: "book-coordinator-7d9-fghij"},
		{Component: kube.Worker, Index: 10, Pod: "book-worker-10-klmno"},
	} {
		if err := p.line(s, "says"); err != nil {
			t.Fatal(err)
		}
	}
	p.coloured = true
	for _, index := range []int{1, 0, 1} {
		if err := p.line(kube.LogSource{Component: kube.Etcd, Index: index}, "x"); err != nil {
			t.Fatal(err)
		}
	}
	want := "worker-0/abcde | says\ncoordinator/fghij | says\nworker-10/klmno   | says\n" +
		"\x1b[31metcd-1           \x1b[0m | x\n\x1b[32metcd-0           \x1b[0m | x\n" +
		"\x1b[31metcd-1           \x1b[0m | x\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestCommandsThatRefuse: a wrong command line, or a job that does not exist, is one line.
func TestCommandsThatRefuse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cluster := apiServer(t, endedJob(batchv1.JobFailed))
	for line, c := range map[string]struct {
		code  int
		wrong string
	}{
		"logs --component ring":                 {2, `--component "ring" is not worker, coord`},
		"logs --component observer --index 1":   {2, "--index 1: the observer has none"},
		"logs --since -1m":                      {2, "--since -1m0s: give how long ago"},
		"logs -f -p":                            {2, "leave out --follow"},
		"logs --job book":                       {1, "job book has ended, and its worker or coord"},
		"logs --component etcd":                 {1, "(context c) has no pods of etcd"},
		"stop --job book":                       {1, "job book has ended: the reason"},
		"scale 3 --job book":                    {1, "job book has ended: the reason"},
		"workers --job book --etcd nowhere":     {2, `--etcd "nowhere" is not host:port`},
		"status --job book --context elsewhere": {2, "--context elsewhere: the kubeconfig has no"},
	} {
		var out, wrong strings.Builder
		command := root()
		command.SetOut(&out)
		code := app.Run(ctx, command, append(strings.Fields(line), cluster...), &wrong)
		if code != c.code || !strings.Contains(wrong.String(), c.wrong) ||
			strings.Count(wrong.String(), "\n") != 1 {
			t.Errorf("%s: %d, %s, want %d, %s", line, code, &wrong, c.code, c.wrong)
		}
	}
}
