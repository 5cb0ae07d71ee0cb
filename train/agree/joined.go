package agree

import "fmt"

// Where a ring's state is from, if not from its ranks.
const (
	FromCheckpoint = "checkpoint"
	FromScratch    = "scratch"
	FromReplay     = "replay" // of the lanes that were lost
)

// Joined is the result of a Join. It is the same on all ranks.
type Joined struct {
	Step      int64
	From      string // FromCheckpoint, FromScratch, FromReplay; empty: from the ranks themselves
	Donor     int    // the rank whose state it is; -1: from scratch
	Copied    []int  // ranks that were given the state
	LostLanes []int  // whose states no rank knew
	LostSlots int    // parameters whose optimizer values no rank had
	Replayed  int64  // segments of each that they were computed from; 0: they were not
	Redone    int64  // completed steps on record that no rank and no snapshot has
}

// String is a notice for people; empty if every rank and lane just went on.
func (j Joined) String() string {
	text := j.from()
	if j.Redone == 0 {
		return text
	}
	if text != "" {
		text += "; "
	}
	return fmt.Sprintf("%s%d completed steps are done again, from step %d on: the workers that "+
		"had completed them are gone, and no checkpoint has them", text, j.Redone, j.Step+1)
}

// from says where the state is from, if not from the ranks themselves.
func (j Joined) from() string {
	lost := j.lost()
	switch {
	case j.From == FromScratch:
		return "no worker has a state, and there is no checkpoint: training starts from scratch"
	case j.From == FromCheckpoint && lost == "":
		return fmt.Sprintf("training goes on from the checkpoint of step %d", j.Step)
	case j.From == FromCheckpoint:
		return fmt.Sprintf("%straining goes back to the checkpoint of step %d", lost, j.Step)
	case j.From == FromReplay && len(j.LostLanes) == 0:
		return lost + "that begins at zero again (there is no checkpoint)"
	case j.From == FromReplay:
		return fmt.Sprintf("%sthey were computed anew, up to step %d, from zeros %d segments ago, "+
			"with the parameters as they are: they are not what they were (there is no "+
			"checkpoint)", lost, j.Step, j.Replayed)
	case len(j.Copied) > 0:
		return fmt.Sprintf("rank %d gave its state of step %d to the ranks %v", j.Donor, j.Step,
			j.Copied)
	}
	return ""
}

// lost names the lanes and slots that no rank had, as the start of a sentence.
func (j Joined) lost() (text string) {
	if len(j.LostLanes) > 0 {
		text = fmt.Sprintf("no worker knew the states of the lanes %v, so ", j.LostLanes)
	}
	if j.LostSlots > 0 {
		text = fmt.Sprintf("no worker had what --optimizer keeps of %d parameters "+
			"(--shard-copies), so ", j.LostSlots) + text
	}
	return text
}
