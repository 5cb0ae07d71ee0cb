// Command rondo trains recurrent language models and uses what they learned. See `rondo --help`.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/meet"
)

func main() { os.Exit(app.Main(root())) }

func root() *cobra.Command {
	c := &cobra.Command{
		Use:     "rondo",
		Short:   "Train recurrent language models on several workers at once",
		Version: meet.Version(),
		Long: "Rondo trains recurrent language models data-parallel: a coordinator, elected\n" +
			"through etcd, deals lanes of text to workers, which sum their gradients around a\n" +
			"gRPC ring.",
	}
	c.AddCommand(trainCommand(), workerCommand(), generateCommand(), evalCommand(),
		corpusCommand(), checkpointCommand(), auditCommand(),
		workersCommand(), scaleCommand(), stopCommand(), observeCommand(),
		etcdCommand(), benchCommand())
	return c
}
