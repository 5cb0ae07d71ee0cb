// Command worker is the worker of a job: see `worker --help`.
package main

import (
	"os"

	"rondo/internal/app"
	"rondo/worker"
)

func main() { os.Exit(app.Main(worker.Command())) }
