// Command coordinator is the coordinator of a job: see `coordinator --help`.
package main

import (
	"os"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/coordinator"
)

func main() { os.Exit(app.Main(coordinator.Command())) }
