package meet

import (
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rondo/internal/app"
	"rondo/telemetry"
)

// AddFlags defines the flags that every process of a job has. After parsing, the returned function
// gives their values, with a log of at least the given level, or slog.LevelDebug with --verbose.
func AddFlags(c *cobra.Command) func(least slog.Level) (Config, error) {
	var cfg Config
	flags := c.Flags()
	flags.StringSliceVar(&cfg.Etcd, "etcd", nil, "host:port,... of etcd")
	flags.StringVar(&cfg.Job, "job", "", "name of the job")
	flags.StringVar(&cfg.Listen, "listen", ":0", "host:port to listen on; without a host, "+
		"others use the address from which this machine reaches etcd; port 0: any")
	flags.StringVar(&cfg.Host, "host", "", "name of this process's machine, for the ring's order; "+
		"default: the host name. If it is set, the process has its cores for itself")
	flags.Int64Var(&cfg.Run, "run", 0, "number of the job's run to take part in; 0: any")
	flags.StringVar(&cfg.Health, "health", "", "host:port of a gRPC health service, for probes; "+
		"default: none")
	flags.StringVar(&cfg.TLS, "tls", "", "folder that rondo certs made, or one with this "+
		"process's tls.crt, tls.key and ca.crt, for mutual TLS on every connection; default: no "+
		"TLS, on this machine's loopback alone")
	flags.BoolVar(&cfg.Insecure, "insecure", false, "without --tls: let other machines reach this "+
		"process without encryption and without knowing who they are")
	log := AddLogFlags(flags)
	app.Require(c, "etcd", "job")
	return func(least slog.Level) (Config, error) {
		var err error
		cfg.Log, err = log(os.Stderr, least)
		return cfg, err
	}
}

// AddLogFlags defines --log-format and --verbose. After parsing, the returned function opens the
// log; --verbose lowers its level to slog.LevelDebug.
func AddLogFlags(flags *pflag.FlagSet) func(w io.Writer, least slog.Level) (*slog.Logger, error) {
	format := flags.String("log-format", "text", "format of the log on standard error: "+
		strings.Join(telemetry.LogFormats(), ", "))
	verbose := flags.Bool("verbose", false, "log connections, plans and timing, too")
	return func(w io.Writer, least slog.Level) (*slog.Logger, error) {
		if *verbose {
			least = slog.LevelDebug
		}
		log, err := telemetry.NewLog(w, *format, least)
		return log, app.Usage(err)
	}
}
