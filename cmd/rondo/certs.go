package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/internal/certs"
)

func certsCommand() *cobra.Command {
	var dir string
	var order certs.Order
	c := &cobra.Command{
		Use:   "certs",
		Short: "Make certificates for --tls of the processes of jobs on several machines",
		Long: "Writes a folder for --tls of rondo train, worker, coordinator, observe and etcd.\n" +
			"Each process shows a certificate of its job and role from it: jobs/JOB/worker,\n" +
			"coordinator, observer or user, or etcd and peer. Machines of etcd and coordinators\n" +
			"need the folder without the files ca.key; a machine of workers alone needs no more\n" +
			"than jobs/JOB/worker, as its --tls. The files ca.key sign, and stay here: run the\n" +
			"command again for more hosts and jobs, or within 90 days to renew; the processes\n" +
			"read changed files again without a restart.\n\n" +
			"Whoever has a tls.key may do in that job what its role does. --revoke locks them\n" +
			"out, within a minute of the copy.",
	}
	c.Flags().StringVar(&dir, "dir", "certs", "folder to write; an authority that is there is "+
		"used, and certificates of jobs that are there are renewed")
	c.Flags().StringSliceVar(&order.Hosts, "hosts", nil, "names and IP addresses of all machines, "+
		"as --etcd and --peers name them")
	c.Flags().StringSliceVar(&order.Jobs, "job", nil, "names of jobs; none: those of "+
		"the folder, or else rondo")
	c.Flags().StringVar(&order.Namespace, "namespace", "", "namespace of the jobs: "+
		"processes of another one are refused; empty: that of the folder's jobs, or else default")
	c.Flags().StringSliceVar(&order.Revoke, "revoke", nil, "certificates (tls.crt) that are not "+
		"valid any more, e.g. the present one of a job's workers; it is renewed, as all are")
	app.Require(c, "hosts")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		until, err := certs.Issue(dir, order, time.Now())
		if err != nil {
			return app.Usage(err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "valid until %s; copy them for --tls %s:\n"+
			"  of etcd and coordinators:  rsync -a --exclude %s %s HOST:\n"+
			"  of workers alone:          rsync -a %s HOST:%s/\n", until.Format(time.DateOnly),
			filepath.Base(dir), certs.AuthorityKeyFile, filepath.Clean(dir),
			filepath.Join(dir, "jobs", "JOB", string(certs.Worker))+"/", filepath.Base(dir))
		return err
	}
	return c
}
