package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"rondo/cluster/etcdmember"
	"rondo/internal/app"
)

func etcdCommand() *cobra.Command {
	cfg := etcdmember.Config{}
	var peers []string
	var domain string
	var peerPort int
	c := &cobra.Command{
		Use:   "etcd",
		Short: "Run a member of an etcd cluster that heals itself",
		Long: "Runs a member of the etcd cluster that the processes of jobs use. All\n" +
			"members are given the same --peers.\n\n" +
			"A member that starts with an empty disk asks the others. If all answer and none\n" +
			"has data, they found the cluster. If a cluster is running, its majority admits\n" +
			"the member in place of the one with the lost disk. If data may exist but no\n" +
			"majority answers, it waits and says what is missing: it never founds a second\n" +
			"cluster beside a running one.",
	}
	flags := c.Flags()
	flags.StringVar(&cfg.Name, "name", "", "name of this member, one of --peers")
	flags.StringSliceVar(&peers, "peers", nil, "all members: NAME,... or NAME=HOST:PORT,...; "+
		"NAME alone is at NAME.DOMAIN")
	flags.StringVar(&domain, "domain", "", "domain of --peers without an address")
	flags.StringVar(&cfg.Token, "token", "rondo", "name that distinguishes this cluster from "+
		"others with the same member names; a cluster keeps its first one")
	flags.StringVar(&cfg.Data, "data", "", "folder that is this member's disk")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1", "IP address to listen on; 0.0.0.0 is "+
		"all, those of IPv6 too")
	flags.IntVar(&cfg.ClientPort, "client-port", 2379, "port for clients")
	flags.IntVar(&peerPort, "peer-port", 2380, "port of --peers without an address")
	flags.StringVar(&cfg.Health, "health", "127.0.0.1:2381", "host:port of /health, /livez, "+
		"/readyz and /metrics, without TLS")
	flags.StringVar(&cfg.TLS, "tls", "", "folder that rondo certs made, for mutual TLS with "+
		"clients and members; default: no TLS")
	flags.BoolVar(&cfg.Insecure, "insecure", false, "without --tls: let other machines read and "+
		"write everything in this etcd")
	flags.DurationVar(&cfg.Patience, "patience", 10*time.Minute, "how long to wait for the others "+
		"to found the cluster or admit this member")
	flags.BoolVar(&cfg.Verbose, "verbose", false, "have etcd log everything, not only what is "+
		"wrong")
	app.Require(c, "name", "peers", "data")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if cfg.Peers, err = etcdmember.ParsePeers(peers, domain, peerPort); err != nil {
			return app.Usage(err)
		}
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
		member, err := etcdmember.New(cfg)
		if err != nil {
			return app.Usage(err)
		}
		return member.Run(cmd.Context())
	}
	return c
}
