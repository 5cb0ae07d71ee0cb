// Command coordinator coordinates a job: see `coordinator --help`.
package main

import (
	"os"

	"rondo/coordinator"
	"rondo/internal/app"
)

func main() { os.Exit(app.Main(coordinator.Command())) }
