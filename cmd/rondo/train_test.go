package main

import (
	"strings"
	"testing"

	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

func TestResumeCommand(t *testing.T) {
	spec := &rondov1.JobSpec{CheckpointDir: "/data/runs/x", Resume: "never"}
	const tail = " --checkpoint-dir /data/runs/x --resume auto"
	for line, want := range map[string]string{
		"rondo train":                           "rondo train" + tail,
		"rondo train --steps 9 --inject kill":   "rondo train --steps 9" + tail,
		"rondo train --inject=kill --steps 9":   "rondo train --steps 9" + tail,
		"rondo train --resume 5 --steps 9":      "rondo train --steps 9" + tail,
		"rondo train --checkpoint-dir x --json": "rondo train --json" + tail,
	} {
		if got := strings.Join(resumeCommand(strings.Fields(line), spec, false), " "); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
	// What --time has chosen is given in its place.
	chosen := jobspec.Default()
	chosen.CheckpointDir, chosen.Hidden, chosen.Epochs, chosen.Steps = "/x", 96, 0, 40
	got := resumeCommand(strings.Fields("rondo train --time 5m --seed 2"), chosen, true)
	const want = "rondo train --seed 2 --hidden 96 --epochs 0 --steps 40 " +
		"--checkpoint-dir /x --checkpoint-dir /x --resume auto"
	if strings.Join(got, " ") != want {
		t.Errorf("%q", got)
	}
}

func TestPageAt(t *testing.T) {
	if open, err := pageAt("off", false); open != nil || err != nil {
		t.Errorf("off: %v", err)
	}
	code, out, complaint := rondo(t, "train", "--dashboard", "here")
	if code != 2 || out != "" || !strings.HasPrefix(complaint,
		`rondo train: --dashboard "here" is not off or ADDRESS:PORT`) {
		t.Errorf("exit code %d, %s%s", code, out, complaint)
	}
}
