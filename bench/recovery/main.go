// Command recovery measures the cost of failures. It kills workers, leaders and agents of running
// jobs, Rondo's and torchrun's, and prints how long each job takes to its next step.
package main

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"time"

	"rondo/bench/internal/command"
)

func main() {
	var c config
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	flag.StringVar(&c.Worker, "worker", "bin/worker", "its worker")
	flag.StringVar(&c.Coordinator, "coordinator", "bin/coordinator", "its coordinator")
	command.Python(&c.Python)
	flag.StringVar(&c.Script, "script", "bench/peers/torch_elastic.py", "torchrun's side")
	flag.StringVar(&c.Parts, "parts", "all", "what to measure, by commas: kills, torchrun, "+
		"agents, agents-replaced, agents-quick, joins, takeovers; or all")
	flag.IntVar(&c.Hidden, "hidden", 1568, "hidden units of the LSTM; 1568 are 10M parameters")
	flag.IntVar(&c.Batch, "batch", 6, "lanes of all workers together")
	flag.IntVar(&c.BPTT, "bptt", 8, "tokens of a segment")
	flag.IntVar(&c.Threads, "threads", 1, "threads of each worker")
	flag.IntVar(&c.Workers, "workers", 3, "workers of a full ring")
	flag.IntVar(&c.SaveEvery, "save-every", 20, "steps between torchrun's snapshots")
	flag.IntVar(&c.Kills, "kills", 24, "workers of Rondo to kill")
	flag.IntVar(&c.PeerKills, "peer-kills", 9, "workers of torchrun with one agent to kill")
	flag.IntVar(&c.AgentKills, "agent-kills", 3, "agents of torchrun to kill, with each setting")
	flag.IntVar(&c.Joins, "joins", 6, "workers that come and go")
	flag.IntVar(&c.Takeovers, "takeovers", 4, "leaders to kill")
	flag.Uint64Var(&c.Seed, "seed", 0, "of the moments at which workers are killed; 0: any")
	flag.DurationVar(&c.LeaseTTL, "lease-ttl", 10*time.Second, "of Rondo's workers and leaders")
	flag.DurationVar(&c.Timeout, "timeout", 3*time.Minute, "of each wait for a step")
	flag.DurationVar(&c.Calm, "calm", 0, "without a kill, before each and after the last")
	flag.StringVar(&c.Trace, "trace", "", "file for the steps and kills of each job, which "+
		"bench/pictures draws; empty: none")
	flag.DurationVar(&c.Limit, "limit", 30*time.Minute, "of everything")
	command.Main("recovery", func() error {
		if c.Seed == 0 {
			c.Seed = rand.Uint64N(1 << 32)
		}
		return command.NoArguments()
	}, func(ctx context.Context) error { return run(ctx, c, os.Stdout, os.Stderr) })
}
