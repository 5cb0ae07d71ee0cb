package coordinator

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/telemetry"
)

// logInterval is the least time between two lines about steps in the leader's log.
const logInterval = 10 * time.Second

// Command is `coordinator --etcd … --job …`.
func Command() *cobra.Command {
	var cfg Config
	c := &cobra.Command{
		Use:     "coordinator",
		Version: meet.Version(),
		Short:   "Lead a job, or stand by for its leader",
	}
	where := meet.AddFlags(c)
	c.Flags().StringVar(&cfg.Spec, "spec", "", "YAML file of the job, to be submitted as run "+
		"--run when no older run goes on; default: somebody else submits it")
	c.Flags().BoolVar(&cfg.Stay, "stay", false, "stay when the job has ended, and lead its next "+
		"run; wait for etcd at the start")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if cfg.Config, err = where(slog.LevelInfo); err != nil {
			return err
		}
		cfg.Show = telemetry.NewLogView(cfg.Log, logInterval, time.Now)
		plan, err := Run(cmd.Context(), cfg)
		if err == nil {
			app.Summarize(cmd, "the job has ended: "+plan.Reason)
		}
		return err
	}
	return c
}
