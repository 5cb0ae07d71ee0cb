package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/internal/certs"
)

func certsCommand() *cobra.Command {
	var dir string
	var hosts []string
	c := &cobra.Command{
		Use:   "certs",
		Short: "Make certificates for --tls of the processes of jobs on several machines",
		Long: "Writes a folder for --tls of rondo train, worker, coordinator, observe and etcd:\n" +
			"tls.crt, tls.key and ca.crt. Copy these three to each machine. ca.key signs, and\n" +
			"stays here: run the command again for more hosts, or within 90 days to renew; the\n" +
			"processes read changed files again without a restart.\n\n" +
			"Whoever has tls.key can take part in every job of these machines.",
	}
	c.Flags().StringVar(&dir, "dir", "certs", "folder to write; an authority that is there is "+
		"used")
	c.Flags().StringSliceVar(&hosts, "hosts", nil, "names and IP addresses of all machines, as "+
		"--etcd and --peers name them")
	app.Require(c, "hosts")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		until, err := certs.Issue(dir, hosts, time.Now())
		if err != nil {
			return app.Usagef("--dir: %w", err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "copy %s/{%s,%s,%s} to each machine, and give "+
			"its processes --tls %s; valid until %s\n", dir, certs.CertFile, certs.KeyFile,
			certs.TrustFile, dir, until.Format(time.DateOnly))
		return err
	}
	return c
}
