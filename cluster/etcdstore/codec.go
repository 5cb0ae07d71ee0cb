package etcdstore

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"rondo/cluster"
	rondov1 "rondo/proto/rondo/v1"
)

func phaseToWire(p cluster.Phase) rondov1.Phase {
	switch p {
	case cluster.Forming:
		return rondov1.Phase_PHASE_UNSPECIFIED
	case cluster.Running:
		return rondov1.Phase_PHASE_RUNNING
	case cluster.Stopping:
		return rondov1.Phase_PHASE_STOPPING
	case cluster.Paused:
		return rondov1.Phase_PHASE_PAUSED
	case cluster.Ended:
		return rondov1.Phase_PHASE_ENDED
	}
	panic(fmt.Sprintf("etcdstore: %v is not a phase of a plan", p))
}

func phaseFromWire(p rondov1.Phase) (cluster.Phase, error) {
	switch p {
	case rondov1.Phase_PHASE_UNSPECIFIED:
		return cluster.Forming, nil
	case rondov1.Phase_PHASE_RUNNING:
		return cluster.Running, nil
	case rondov1.Phase_PHASE_STOPPING:
		return cluster.Stopping, nil
	case rondov1.Phase_PHASE_PAUSED:
		return cluster.Paused, nil
	case rondov1.Phase_PHASE_ENDED:
		return cluster.Ended, nil
	}
	return 0, fmt.Errorf("a plan in the unknown phase %d", p)
}

// maxGeneration is the highest generation that is believed. The next ones do not overflow.
const maxGeneration = 1 << 53

func planMessage(p cluster.Plan) *rondov1.Plan {
	message := &rondov1.Plan{
		Generation: uint64(p.Generation), Phase: phaseToWire(p.Phase), Reason: utf8(p.Reason),
		Failed: p.Failed, Usage: p.Usage, Limit: int64(p.Limit), Rings: int64(p.Rings),
		Identity: utf8(p.Identity), Nonce: utf8(p.Nonce), Result: []byte(p.Result),
		Resume: uint64(p.Resume),
	}
	for _, e := range p.Evicted {
		message.Evicted = append(message.Evicted, &rondov1.Eviction{
			Id: utf8(e.ID), Reason: utf8(e.Reason), Remedy: rondov1.Remedy(e.Remedy),
		})
	}
	for r, m := range p.Members {
		message.Members = append(message.Members, memberMessage(m))
		message.LaneEnds = append(message.LaneEnds, int64(p.LaneEnds[r]))
	}
	for _, m := range p.Last {
		message.Last = append(message.Last, memberMessage(m))
	}
	return message
}

// planOf decodes the value of a plan's key. restore puts the plan's rosters back.
func planOf(value []byte, restore func(*rondov1.Plan) error) (cluster.Plan, error) {
	var message rondov1.Plan
	if err := proto.Unmarshal(value, &message); err != nil {
		return cluster.Plan{}, fmt.Errorf("not a plan: %w", err)
	}
	if err := restore(&message); err != nil {
		return cluster.Plan{}, err
	}
	phase, err := phaseFromWire(message.Phase)
	if err != nil {
		return cluster.Plan{}, err
	}
	if last := max(message.Generation, message.Resume); last > maxGeneration {
		return cluster.Plan{}, fmt.Errorf("a plan of generation %d", last)
	}
	p := cluster.Plan{
		Generation: cluster.Generation(message.Generation), Phase: phase,
		Reason: message.Reason, Failed: message.Failed, Usage: message.Usage,
		Limit: int(message.Limit), Rings: int(message.Rings),
		Identity: message.Identity, Nonce: message.Nonce, Result: string(message.Result),
		Resume: cluster.Generation(message.Resume),
	}
	for _, e := range message.Evicted {
		p.Evicted = append(p.Evicted, cluster.Eviction{
			ID: e.GetId(), Reason: e.GetReason(), Remedy: cluster.Remedy(e.GetRemedy()),
		})
	}
	for _, m := range message.Members {
		p.Members = append(p.Members, memberOf(m))
	}
	for _, m := range message.Last {
		p.Last = append(p.Last, memberOf(m))
	}
	for _, end := range message.LaneEnds {
		p.LaneEnds = append(p.LaneEnds, cluster.Lane(end))
	}
	return p, p.Validate()
}

func encodeMember(m cluster.Member) []byte { return encode(memberMessage(m)) }

func decodeMember(value []byte) (cluster.Member, error) {
	var message rondov1.Member
	if err := proto.Unmarshal(value, &message); err != nil {
		return cluster.Member{}, fmt.Errorf("not a member: %w", err)
	}
	if message.Id == "" {
		return cluster.Member{}, fmt.Errorf("a member without an id")
	}
	if last := max(message.Seen, message.Served); last > maxGeneration {
		return cluster.Member{}, fmt.Errorf("a member of generation %d", last)
	}
	return memberOf(&message), nil
}

func memberMessage(m cluster.Member) *rondov1.Member {
	return &rondov1.Member{
		Id: utf8(m.ID), Address: utf8(m.Address), Host: utf8(m.Host), Pid: int64(m.PID),
		Device: utf8(m.Device), Version: utf8(m.Version), Identity: utf8(m.Identity),
		Seen: uint64(m.Seen), Served: uint64(m.Served), Process: utf8(m.Process),
	}
}

func memberOf(m *rondov1.Member) cluster.Member {
	return cluster.Member{
		ID: m.GetId(), Address: m.GetAddress(), Host: m.GetHost(), PID: int(m.GetPid()),
		Device: m.GetDevice(), Version: m.GetVersion(), Identity: m.GetIdentity(),
		Seen: cluster.Generation(m.GetSeen()), Served: cluster.Generation(m.GetServed()),
		Process: m.GetProcess(),
	}
}

func encodeLeader(l cluster.Leader) []byte {
	return encode(&rondov1.Leader{Id: utf8(l.ID), Address: utf8(l.Address)})
}

func decodeLeader(value []byte) (cluster.Leader, error) {
	var message rondov1.Leader
	if err := proto.Unmarshal(value, &message); err != nil {
		return cluster.Leader{}, fmt.Errorf("not a leader: %w", err)
	}
	return cluster.Leader{ID: message.Id, Address: message.Address}, nil
}

// encode marshals a message, which fails only for text that is not UTF-8.
func encode(m proto.Message) []byte {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("etcdstore: %v in %v", err, m))
	}
	return value
}

// utf8 replaces bytes that are invalid in a protobuf string.
func utf8(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
