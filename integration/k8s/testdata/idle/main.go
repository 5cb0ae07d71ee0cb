// idle runs until it is asked to leave, and then says with its exit code, as a worker does, that
// it left early. The measurement of replacements runs it in the place of workers.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// asked is the exit code of a process that was asked to leave before its job's end.
const asked = 4

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	<-signals
	os.Exit(asked)
}
