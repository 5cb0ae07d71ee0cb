package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/k8s/kube"
	"rondo/observe"
)

func observeCommand() *cobra.Command {
	var cfg observe.Config
	var kubeJob, record, pod string
	c := &cobra.Command{
		Use:   "observe",
		Short: "Serve a job's web page and its Prometheus metrics",
		Long: "Follows a job through changes of leader and from run to run, until a signal:\n" +
			"/ is a web page, /api/state the same as JSON, /api/events its changes,\n" +
			"/metrics for Prometheus, /healthz and /readyz for probes.\n\n" +
			"In Kubernetes it runs beside each coordinator (--kube-job): there it also writes\n" +
			"the progress into annotations of the workers' Job, and asks the leader for that\n" +
			"Job's number of workers.",
	}
	flags := c.Flags()
	flags.StringSliceVar(&cfg.Meet.Etcd, "etcd", nil, "host:port,... of etcd")
	flags.StringVar(&cfg.Meet.Job, "job", "rondo", "name of the job")
	flags.StringVar(&cfg.Meet.TLS, "tls", "", "folder that rondo certs made, for mutual "+
		"TLS to etcd and the coordinator; default: no TLS")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:8080", "host:port of the web page; an empty "+
		"host is all of this machine's addresses, with --insecure")
	flags.BoolVar(&cfg.Meet.Insecure, "insecure", false, "let other machines read the page, which "+
		"is plain HTTP")
	flags.StringVar(&kubeJob, "kube-job", "", "name of the Kubernetes Job that runs the workers; "+
		"default: none")
	flags.StringVar(&record, "kube-record", "", "name of the ConfigMap that keeps the job's end; "+
		"default: none")
	flags.StringVar(&pod, "pod", "", "name of this pod; default: the host's name")
	log := meet.AddLogFlags(flags)
	connect := kube.AddFlags(c)
	app.Require(c, "etcd")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if cfg.Meet.Log, err = log(cmd.ErrOrStderr(), slog.LevelInfo); err != nil {
			return err
		}
		if kubeJob != "" {
			cluster, err := connect()
			if err != nil {
				return err
			}
			if pod == "" {
				if pod, err = os.Hostname(); err != nil {
					return app.Usagef("--pod: this host's name cannot be read: %w", err)
				}
			}
			cfg.Beside = &observe.Beside{Pod: pod,
				Job: cluster.WorkerJob(kubeJob).WithRecord(record)}
		}
		cfg.Opened = func(address string) {
			cfg.Meet.Log.Info("the page is served", "url", "http://"+address+"/")
		}
		return observe.Run(cmd.Context(), cfg)
	}
	return c
}
