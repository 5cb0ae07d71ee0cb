package rpc

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

// FuzzRecord: whatever a worker reports, the leader's history keeps its bounds, and the job has a
// last event that can be sent.
func FuzzRecord(f *testing.F) {
	for i, e := range []*rondov1.Event{step(3), sample("text"),
		{Kind: &rondov1.Event_Done{Done: &rondov1.DoneEvent{Step: 9, Generation: 1 << 63}}},
		{Kind: &rondov1.Event_Failure{Failure: &rondov1.FailureEvent{Text: "why", Fatal: true}}},
		{Kind: &rondov1.Event_Suspect{Suspect: &rondov1.SuspectEvent{Rank: -1}}},
		{Kind: &rondov1.Event_Worker{Worker: &rondov1.WorkerEvent{Id: "other"}}},
		{Kind: &rondov1.Event_Checkpoint{Checkpoint: &rondov1.CheckpointEvent{Step: -1}}}} {
		record, err := proto.Marshal(&rondov1.Record{Source: "w", Sequence: uint64(i), Event: e})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(record)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		record := &rondov1.Record{}
		if proto.Unmarshal(text, record) != nil || record.Event.GetKind() == nil {
			return // gRPC and the service refuse it
		}
		s, err := NewServer("c", testJob, func(context.Context) (cluster.Leader, error) {
			return cluster.Leader{}, cluster.ErrNoLeader
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Lead()
		term := s.leads()
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			if ClusterEvent(record) == nil || term.hub.knows(record.Source, record.Sequence) {
				return
			}
			switch e := (<-s.events).(type) {
			case cluster.Done:
				if e.ID != record.Source {
					t.Errorf("%v is told of %q", record, e.ID)
				}
				s.Planned(cluster.Plan{Phase: cluster.Ended, Result: e.Result})
			case cluster.Failed:
				s.Planned(cluster.Plan{Phase: cluster.Ended, Failed: true, Reason: e.Text})
			}
		}()
		if err := s.take(t.Context(), term, record); err != nil {
			t.Errorf("%v: %v", record, err)
		}
		<-heard
		if term.hub.bytes > HistoryBytes || len(term.hub.records) > HistoryLimit {
			t.Errorf("%d records of %d bytes", len(term.hub.records), term.hub.bytes)
		}
		for _, n := range term.hub.records {
			if again := proto.Clone(n.record); proto.Size(again) != proto.Size(n.record) {
				t.Errorf("%v is not what is sent", n.record)
			}
		}
	})
}
