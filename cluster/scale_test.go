package cluster

import (
	"fmt"
	"testing"
	"time"
)

// manyMembers returns members of n hosts, as workers register.
func manyMembers(n int) []Member {
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{
			ID: fmt.Sprintf("host-%05d-1234-k3v9q2", i), Host: fmt.Sprintf("host-%05d", i),
			Address: fmt.Sprintf("10.0.%d.%d:4000", i/256, i%256), PID: 1234,
			Process: fmt.Sprintf("%026d", i), Device: "cuda:0", Version: "7",
			Identity: "5d41402abc4b2a76b9719d911017c592",
		}
	}
	return members
}

// BenchmarkDecide has the time of one event in a job of many workers: all join at once, the last
// one joins, one of a hundred is lost, and newcomers take the lost ones' places.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1000, 4096, 16384} {
		members := manyMembers(n)
		now := time.Unix(1e9, 0)
		job := Job{Workers: n, MinWorkers: 1, Lanes: n, JoinTimeout: time.Hour,
			PauseTimeout: time.Hour, Spread: true, Version: "7"}
		state, _ := Decide(NewState(job), Elected{}, now)
		most, _ := Decide(state, Joined{members[1:]}, now)
		all, _ := Decide(most, Joined{members[:1]}, now)
		if got := len(all.Plan().Members); got != n {
			b.Fatalf("a ring of %d of %d", got, n)
		}
		var lost []string
		for i := 0; i < n; i += 100 {
			lost = append(lost, members[i].ID)
		}
		fewer, _ := Decide(all, Left{lost}, now)
		if got := len(fewer.Plan().Members); got != n-len(lost) {
			b.Fatalf("a ring of %d of %d", got, n-len(lost))
		}
		back := manyMembers(n)[:len(lost)]
		for i := range back {
			back[i].ID += ".2"
		}
		for _, c := range []struct {
			name  string
			state State
			event Event
		}{
			{"all join", state, Joined{members}},
			{"last joins", most, Joined{members[:1]}},
			{"hundredth lost", all, Left{lost}},
			{"places taken", fewer, Joined{back}},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				for b.Loop() {
					Decide(c.state, c.event, now)
				}
			})
		}
	}
}
