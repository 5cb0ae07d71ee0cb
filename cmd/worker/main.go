// Command worker is the worker of a job: see `worker --help`.
package main

import (
	"os"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/worker"
)

func main() { os.Exit(app.Main(worker.Command())) }
