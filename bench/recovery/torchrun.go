package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	"rondo/internal/port"
)

// maxRestarts is torchrun's limit of restarts: more than the kills here.
const maxRestarts = 1000

// ownStore gives the workers of each restart a store of their own. By default they share one that
// outlives them and has the addresses of dead processes. With PyTorch 2.15.0 and Gloo such a job
// does not go on after a kill, and with 2.5.1 a new agent never comes in.
const ownStore = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"

// launcher starts torchrun's agents, all at one rendezvous on loopback.
type launcher struct {
	config
	*stage
	address string
	nodes   string // agents: as many, or least:most
	each    int    // workers of an agent
	conf    string // of the rendezvous, beyond its defaults
	agents  int    // started so far
	host    *process
}

func (c config) newLauncher(s *stage, nodes string, each int, conf string) (*launcher, error) {
	rendezvous, err := port.Reserve()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.ports = append(s.ports, rendezvous)
	s.mu.Unlock()
	return &launcher{config: c, stage: s, address: rendezvous.Address(),
		nodes: nodes, each: each, conf: conf}, nil
}

// launch starts an agent. The first one has the rendezvous.
func (l *launcher) launch() error {
	conf := "is_host=0"
	if l.agents == 0 {
		conf = "is_host=1"
	}
	if l.conf != "" {
		conf += "," + l.conf
	}
	l.agents++
	// The shell becomes the agent, and so knows its process id, which the workers need.
	argv := []string{"sh", "-c", `AGENT=$$ exec env "$@"`, "sh"}
	argv = append(argv, ownStore, l.Python, "-m", "torch.distributed.run", "--nnodes="+l.nodes,
		"--nproc-per-node="+strconv.Itoa(l.each), fmt.Sprintf("--max-restarts=%d", maxRestarts),
		"--rdzv-id=recovery", "--rdzv-backend=c10d", "--rdzv-endpoint="+l.address,
		"--rdzv-conf="+conf, "--local-addr=127.0.0.1", l.Script,
		"--snapshot", filepath.Join(l.dir, "snapshot.pt"),
		"--save-every", strconv.Itoa(l.SaveEvery), "--vocab", strconv.Itoa(vocabulary))
	p, err := l.start(fmt.Sprintf("torchrun, agent %d", l.agents),
		append(argv, l.shape()...)...)
	if l.host == nil {
		l.host = p
	}
	return err
}

// oneAgent is a job of one agent, which restarts all of its workers when one dies.
func (c config) oneAgent(s *stage) (*target, error) {
	l, err := c.newLauncher(s, "1", c.Workers, "")
	if err != nil {
		return nil, err
	}
	if err := l.launch(); err != nil {
		return nil, err
	}
	t := c.newTarget(s)
	t.vital = l.host
	return t, nil
}

// manyAgents is a job with an agent for each worker, which die together: a machine that is lost.
// The agent that has the rendezvous is spared: without it the job cannot go on at all. A new agent
// comes when the others go on, or early, right after the kill.
func (c config) manyAgents(s *stage, conf string, early bool) (
	*target, error) {
	l, err := c.newLauncher(s, fmt.Sprintf("%d:%d", c.Workers-1, c.Workers), 1, conf)
	if err != nil {
		return nil, err
	}
	for range c.Workers {
		if err := l.launch(); err != nil {
			return nil, err
		}
	}
	t := c.newTarget(s)
	t.vital, t.early = l.host, early
	t.spare = func(e event) bool { return e.From == l.host }
	t.mend = l.launch
	t.strike = func(victim event) error {
		if err := victim.From.cmd.Process.Kill(); err != nil {
			return err
		}
		// The kernel kills the worker with its agent, unless we are first.
		if err := killProcess(victim); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	}
	return t, nil
}
