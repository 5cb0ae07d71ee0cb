package coordinator

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/telemetry"
)

// logInterval is the least time between two step lines in the leader's log.
const logInterval = 10 * time.Second

// Command returns the command `coordinator --etcd … --job …`.
func Command() *cobra.Command {
	var cfg Config
	c := &cobra.Command{
		Use:     "coordinator",
		Version: meet.Version(),
		Short:   "Lead a job, or stand by for its leader",
	}
	where := meet.AddFlags(c)
	c.Flags().StringVar(&cfg.Spec, "spec", "", "YAML file of the job; it is submitted as run "+
		"--run as soon as no older run is active; default: another process submits the job")
	c.Flags().BoolVar(&cfg.Stay, "stay", false, "stay after the job's end and lead its next run; "+
		"at the start, wait for etcd")
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
