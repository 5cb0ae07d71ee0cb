package main

import (
	"encoding/json"
	"strings"
	"testing"

	"rondo/job"
)

// The devices are listed with or without GPUs, with the reason for having none.
func TestDevices(t *testing.T) {
	code, out, complaint := rondo(t, "devices")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || complaint != "" || len(lines) < 3 || !strings.HasPrefix(lines[0], "DEVICE ") ||
		!strings.HasPrefix(lines[1], "cpu     cpu (") {
		t.Fatalf("exit code %d, %q\n%s", code, complaint, out)
	}
	if !job.CUDA && !strings.HasPrefix(lines[2], "no GPUs: this binary was built without CUDA") {
		t.Errorf("\n%s", out)
	}
	var found devices
	code, out, _ = rondo(t, "devices", "-o", "json")
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != 0 ||
		found.CPU.Threads < 1 || found.CUDA != job.CUDA || found.GPUs == nil ||
		(len(found.GPUs) == 0) != (found.Reason != "") {
		t.Errorf("exit code %d, %v, %+v", code, err, found)
	}
}

func TestDevicesTable(t *testing.T) {
	var out strings.Builder
	d := devices{CPU: processor{Name: "cpu (AVX2)", Threads: 2}, GPUs: []job.GPU{
		{Index: 0, Name: "NVIDIA H200", UUID: "GPU-1", Memory: 140 << 30, Free: 139 << 30,
			Capability: "9.0", Driver: "12.4", CUBLAS: true,
			Library: "/opt/libcublas.so.13"},
		{Index: 1, Name: "Tesla V100", UUID: "GPU-2", Memory: 16 << 30, Capability: "7.0",
			Driver: "12.4"},
		{Index: 2, Name: "Tesla K80", UUID: "GPU-3", Memory: 12 << 30, Capability: "3.7",
			Driver: "12.4", Problem: "it is too old"}}, NCCL: "2.23.4",
		NCCLLibrary: "/opt/libnccl.so.2"}
	if err := d.print(&out); err != nil {
		t.Fatal(err)
	}
	const want = `DEVICE  NAME         FREE       MEMORY     CAPABILITY  DRIVER  CUBLAS     UUID
cpu     cpu (AVX2)   -          -          -           -       -          -
cuda:0  NVIDIA H200  139.0 GiB  140.0 GiB  9.0         12.4    found      GPU-1
cuda:1  Tesla V100   0.0 GiB    16.0 GiB   7.0         12.4    not found  GPU-2
cuda:2  Tesla K80    0.0 GiB    12.0 GiB   3.7         12.4    -          GPU-3
cuda:0 multiplies with /opt/libcublas.so.13
cuda:1 has no cuBLAS: layers of hidden 1024 are slower by about 40%; install it (pip install ` +
		`nvidia-cublas), or name its folder in LD_LIBRARY_PATH
cuda:2 cannot be used: it is too old
NCCL, which sums between GPUs of a host: 2.23.4 /opt/libnccl.so.2`
	if got := strings.TrimSuffix(out.String(), "\n"); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

// A device that a machine or a build lacks is refused in one line, before anything starts.
func TestDeviceIsRefused(t *testing.T) {
	want := map[string]string{
		"train --device=tpu":                        `--device "tpu" is not one of auto, cpu`,
		"train --device=cpu --precision=tf32":       "--precision tf32 needs a GPU",
		"train --workers=many":                      `--workers "many" is not a whole number`,
		"bench train --device=tpu":                  `--device "tpu" is not one of`,
		"bench train --device=cpu --precision=fp16": "--precision fp16 needs a GPU",
		"bench kernels --device=cpu":                "unknown flag: --device",
		"devices -o yaml":                           `--output "yaml" is not json`,
		"worker --etcd=a:1 --job=a --device=gpu":    `--device "gpu" is not one of`,
	}
	if !job.CUDA {
		const none = ": this binary was built without CUDA: build it with -tags cuda, or use the " +
			"image rondo:VERSION-cuda"
		want["train --device=cuda"] = "rondo train: --device cuda" + none
		want["train --device=cuda:1"] = "rondo train: --device cuda:1" + none
		want["train --device=cuda --workers=auto"] = "rondo train: --device cuda" + none
		want["train --precision=fp16"] = "--precision fp16 needs a GPU"
		want["bench train --device=cuda"] = "rondo bench train: --device cuda" + none
	}
	for line, want := range want {
		code, out, complaint := rondo(t, strings.Fields(line)...)
		if code != 2 || out != "" || strings.Count(complaint, "\n") != 1 ||
			!strings.Contains(complaint, want) {
			t.Errorf("%s: exit code %d, %q, %q; want %q", line, code, out, complaint, want)
		}
	}
}
