// Command rondo trains recurrent language models and uses them. See `rondo --help`.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
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
	group(c, "machine", "On this machine:", trainCommand(), workerCommand(), benchCommand(),
		devicesCommand())
	group(c, "kubernetes", "Jobs on Kubernetes:", submitCommand(), resumeJobCommand(),
		deleteCommand(), statusCommand(), logsCommand())
	group(c, "job", "A running job, on Kubernetes or with --etcd:", workersCommand(),
		scaleCommand(), stopCommand())
	group(c, "servers", "Servers beside jobs:", etcdCommand(), observeCommand(), operatorCommand(),
		certsCommand())
	group(c, "models", "Models and data:", modelsCommand(), recipesCommand(), generateCommand(),
		serveCommand(), classifyCommand(), tagCommand(), fillCommand(), translateCommand(),
		describeCommand(), predictCommand(), answerCommand(), evalCommand(), gradientsCommand(),
		corpusCommand(), tokenizerCommand(), checkpointCommand(), auditCommand())
	return c
}

// group adds commands under one heading of the help.
func group(c *cobra.Command, id, title string, commands ...*cobra.Command) {
	c.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, command := range commands {
		command.GroupID = id
		c.AddCommand(command)
	}
}
