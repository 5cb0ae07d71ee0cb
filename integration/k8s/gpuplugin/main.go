// Command gpuplugin is a device plugin that offers GPUs that are not there. It serves the kubelet's
// device plugin API (v1beta1) as NVIDIA's plugin does, so that a test can see where a cluster
// places workers with GPUs. It finds no devices and mounts none. A container gets the name of its
// GPU in NVIDIA_VISIBLE_DEVICES, and each name is printed when the kubelet asks for it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	healthy := flag.Int("healthy", 0, "GPUs that can be allocated")
	broken := flag.Int("broken", 0, "GPUs that the node has, but that cannot be allocated")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, devices(*healthy, *broken)); err != nil {
		fmt.Fprintln(os.Stderr, "gpuplugin:", err)
		os.Exit(1)
	}
}
