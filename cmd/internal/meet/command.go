package meet

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"rondo/cmd/internal/app"
)

// AddFlags defines the flags that every process of a job has. The returned function gives their
// values once they are parsed.
func AddFlags(c *cobra.Command) func() Config {
	var cfg Config
	var verbose bool
	flags := c.Flags()
	flags.StringSliceVar(&cfg.Etcd, "etcd", nil, "host:port,... of etcd")
	flags.StringVar(&cfg.Job, "job", "", "name of the job")
	flags.StringVar(&cfg.Listen, "listen", ":0", "host:port to listen on; without a host, it is "+
		"known by this machine's address on the way to etcd; port 0 is any")
	flags.StringVar(&cfg.Host, "host", "", "the machine that this process is on, for the ring's "+
		"order; default: the host's name. A process that is told has its cores for itself")
	flags.Int64Var(&cfg.Run, "run", 0, "number of the job's run that this process is of; 0: any")
	flags.StringVar(&cfg.Health, "health", "", "host:port of a gRPC health service, for probes; "+
		"default: none")
	flags.StringVar(&cfg.TLS, "tls", "", "folder with tls.crt, tls.key and ca.crt, for mutual TLS "+
		"on every connection; default: no TLS")
	flags.BoolVar(&verbose, "verbose", false, "log what happens, not only what is wrong")
	app.Require(c, "etcd", "job")
	return func() Config {
		level := slog.LevelWarn
		if verbose {
			level = slog.LevelInfo
		}
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
		return cfg
	}
}
