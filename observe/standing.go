package observe

import (
	"rondo/cluster"
	"rondo/telemetry"
)

// StandingOf returns the state of a stored job: the ring by rank, and then the other registered
// workers.
func StandingOf(job cluster.Job, view cluster.View) telemetry.Standing {
	plan := view.Plan
	s := telemetry.Standing{Phase: phaseOf(plan), Reason: plan.Reason, Leader: view.Leader.ID,
		Generation: int64(plan.Generation), Rings: int64(plan.Rings),
		WorldSize: int64(len(plan.Members)), MinWorkers: int64(job.MinWorkers),
		Limit: int64(job.Limit(plan))}
	registered := make(map[string]bool, len(view.Members))
	for _, m := range view.Members {
		registered[m.ID] = true
	}
	for rank, m := range plan.Members {
		seat := seatOf(m, telemetry.SeatRing)
		switch {
		case registered[m.ID]:
		case plan.Phase == cluster.Ended:
			seat.State = telemetry.SeatLeft
		default:
			seat.State = telemetry.SeatLost
		}
		from, to := plan.Lanes(cluster.Rank(rank))
		seat.Rank, seat.Lanes = int64(rank), [2]int64{int64(from), int64(to)}
		s.Seats = append(s.Seats, seat)
	}
	full := len(plan.Members) >= job.Limit(plan) || plan.Phase == cluster.Stopping
	for _, m := range view.Members {
		if _, inRing := plan.Rank(m.ID); inRing {
			continue
		}
		seat := seatOf(m, telemetry.SeatJoining)
		if e, evicted := plan.Eviction(m.ID); evicted {
			seat.State, seat.Reason = telemetry.SeatEvicted, e.Reason
		} else if full {
			seat.State = telemetry.SeatSpare
		}
		s.Seats = append(s.Seats, seat)
	}
	return s
}

func seatOf(m cluster.Member, state string) telemetry.Seat {
	return telemetry.Seat{Rank: -1, State: state, ID: m.ID, Host: m.Host, PID: int64(m.PID),
		Device: m.Device}
}

// phaseOf returns telemetry's name of the phase.
func phaseOf(p cluster.Plan) string {
	switch p.Phase {
	case cluster.Running:
		return telemetry.PhaseRunning
	case cluster.Stopping:
		return telemetry.PhaseStopping
	case cluster.Paused:
		return telemetry.PhasePaused
	case cluster.Ended:
		if p.Failed {
			return telemetry.PhaseFailed
		}
		return telemetry.PhaseEnded
	}
	return telemetry.PhaseForming
}
