// Command image builds the container image for processors without a Docker engine: static binaries,
// their licences and a list of what they are built of, certificates and /tmp, as k8s/Dockerfile has
// them, in an archive that `docker load`, `podman
// load`, `kind load image-archive` and `ctr images import` read. The same inputs give the same
// bytes. It imports nothing of Rondo's, and pushes nothing.
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	tag := flags.String("tag", "", "name of the image; default: rondo:VERSION")
	output := flags.String("output", "bin/rondo-image.tar", "file that is written")
	binaries := flags.String("binaries", "bin/image", "folder where the commands are built")
	certificates := flags.String("certificates", "", "file of the authorities' certificates; "+
		"default: this system's")
	papers := flags.Bool("papers", false, "write only "+sbomFile+" and "+noticesFile+" of the "+
		"commands that are in --binaries, to that folder")
	_ = flags.Parse(args) // it exits
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	}
	if *papers {
		return writePapers(ctx, *binaries)
	}
	trusted, err := certificatesIn(*certificates)
	if err != nil {
		return err
	}
	version, err := buildCommands(ctx, *binaries)
	if err != nil {
		return err
	}
	if *tag == "" {
		*tag = "rondo:" + version
	}
	made, err := pack(*tag, version, contents(*binaries, trusted), *output)
	if err == nil {
		fmt.Println(made)
	}
	return err
}
