package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/coordinator"
	"rondo/observe"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

func workersCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "workers",
		Short: "List the workers of a running job, with their states",
		Long: "Lists the workers of a running job, as its etcd has them. On Kubernetes (without\n" +
			"--etcd) it shows what rondo status shows: each pod with its rank and lanes.",
	}
	named := jobFlags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if named.inCluster() {
			there, err := named.cluster()
			if err != nil {
				return err
			}
			o := statusOptions{job: named.cfg.Job, place: there.String()}
			if asJSON {
				o.format = "json"
			}
			return o.run(cmd.Context(), there, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}
		return named.look(cmd.Context(), func(cfg meet.Config, _ cluster.Registry,
			view cluster.View) error {
			spec := &rondov1.JobSpec{}
			if err := proto.Unmarshal(view.Spec, spec); err != nil {
				return fmt.Errorf("the job's spec in etcd cannot be read: %w", err)
			}
			state := jobStateOf(cfg.Job, coordinator.JobOf(spec), view)
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(state)
			}
			return state.print(cmd.OutOrStdout())
		})
	}
	return c
}

// jobState is the command's output for a job.
type jobState struct {
	Job           string        `json:"job"`
	Phase         string        `json:"phase"`
	Reason        string        `json:"reason"`
	Generation    int           `json:"generation"`
	Rings         int           `json:"rings"`
	WorldSize     int           `json:"world_size"`
	MinWorkers    int           `json:"min_workers"`
	Limit         int           `json:"limit"`
	Leader        string        `json:"leader,omitempty"`
	LeaderAddress string        `json:"leader_address,omitempty"`
	Workers       []workerState `json:"workers"`
}

// workerState is the command's output for a worker.
type workerState struct {
	Rank    *int   `json:"rank,omitempty"`
	State   string `json:"state"` // as telemetry.Seat has it
	Reason  string `json:"reason,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	ID      string `json:"id"`
	Host    string `json:"host"`
	PID     int    `json:"pid,omitempty"` // 0: it runs in a container
	Device  string `json:"device"`
	Address string `json:"address"`
	Lanes   []int  `json:"lanes,omitempty"` // from, to (exclusive)
}

// jobStateOf adds the workers' addresses and the evicted ones' remedies to the job's state.
func jobStateOf(name string, job cluster.Job, view cluster.View) jobState {
	plan, standing := view.Plan, observe.StandingOf(job, view)
	state := jobState{Job: name, Phase: plan.Phase.String(), Reason: plan.Reason,
		Generation: int(plan.Generation), Rings: plan.Rings, WorldSize: len(plan.Members),
		MinWorkers: job.MinWorkers, Limit: job.Limit(plan), Leader: view.Leader.ID,
		LeaderAddress: view.Leader.Address, Workers: []workerState{}}
	addresses := make(map[string]string)
	for _, m := range slices.Concat(view.Members, plan.Members) {
		addresses[m.ID] = m.Address
	}
	for _, seat := range standing.Seats {
		w := workerState{State: seat.State, Reason: seat.Reason, ID: seat.ID, Host: seat.Host,
			PID: max(0, int(seat.PID)), Device: seat.Device, Address: addresses[seat.ID]}
		if rank := int(seat.Rank); rank >= 0 {
			w.Rank, w.Lanes = &rank, []int{int(seat.Lanes[0]), int(seat.Lanes[1])}
		}
		if seat.State == telemetry.SeatEvicted {
			eviction, _ := plan.Eviction(seat.ID)
			w.Remedy = eviction.Remedy.String()
		}
		state.Workers = append(state.Workers, w)
	}
	return state
}

// print writes a line about the job, one with the reason, and a table.
func (s jobState) print(out io.Writer) error {
	leader := "nobody leads it"
	if s.Leader != "" {
		leader = fmt.Sprintf("led by %s at %s", s.Leader, s.LeaderAddress)
	}
	_, err := fmt.Fprintf(out, "job %s: %s, generation %d, %d in the ring (%d to %d), %s\n",
		s.Job, s.Phase, s.Generation, s.WorldSize, s.MinWorkers, s.Limit, leader)
	if err == nil && s.Reason != "" {
		_, err = fmt.Fprintln(out, s.Reason)
	}
	if err != nil || len(s.Workers) == 0 {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RANK\tSTATE\tID\tHOST\tPID\tDEVICE\tLANES\tNOTE")
	for _, w := range s.Workers {
		rank, lanes := "-", "-"
		if w.Rank != nil {
			rank = strconv.Itoa(*w.Rank)
			lanes = fmt.Sprintf("[%d, %d)", w.Lanes[0], w.Lanes[1])
		}
		pid := "-"
		if w.PID > 0 {
			pid = strconv.Itoa(w.PID)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", rank, w.State, w.ID, w.Host,
			pid, w.Device, lanes, w.Reason)
	}
	return table.Flush()
}
