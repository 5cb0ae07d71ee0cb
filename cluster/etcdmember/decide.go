package etcdmember

import (
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// roster is the list of a cluster's members.
type roster struct {
	cluster types.ID
	members []membership.Member
}

// find returns the member at a peer URL, or of a name. One that was added and has never started
// has no name yet.
func (r roster) find(s self) (membership.Member, bool) {
	for _, is := range []func(membership.Member) bool{
		func(m membership.Member) bool { return slices.Contains(m.PeerURLs, s.url) },
		func(m membership.Member) bool { return m.Name == s.name },
	} {
		if i := slices.IndexFunc(r.members, is); i >= 0 {
			return r.members[i], true
		}
	}
	return membership.Member{}, false
}

func (r roster) has(id types.ID) bool {
	return slices.ContainsFunc(r.members, func(m membership.Member) bool { return m.ID == id })
}

// started reports whether a member has been part of its cluster for more than a moment: it tells
// where clients reach it as soon as a majority hears it.
func started(m membership.Member) bool { return len(m.ClientURLs) > 0 }

// self is who decides.
type self struct {
	name     string
	url      string   // of its peers' listener
	founders roster   // the cluster as --peers and --token would found it
	added    types.ID // as whom it was added for this start, and has not started yet; 0: not
}

// disk is whose data a folder holds.
type disk struct {
	used            bool
	cluster, member types.ID
}

// view is what another member says of itself.
type view struct {
	peer    Peer
	address string // from which it answered
	err     error  // it does not answer, or another one does in its place
	empty   bool   // its disk is, and it waits like this one, to found roster.cluster
	hearsMe bool   // and it has heard that this one's is
	was     bool   // it has said to this process that its disk is empty, now or before
	roster  roster // otherwise: the cluster as far as it knows, which may be an old state of it
}

// survey is what the others say.
type survey struct {
	views   []view
	agreed  *roster // what a majority has just confirmed; nil: there is none, or it did not answer
	clients []string
}

// action is a step towards the cluster.
type action int

const (
	wait      action = iota
	resume           // start from the disk
	bootstrap        // found a cluster, with all the others
	join             // start as a member that is known and has nothing yet
	add              // have the majority add this member
	remove           // have it forget what this member was before its disk was lost
	discard          // empty the disk: what it holds is of a member that is no more
	refuse           // give up
)

// starts reports whether the server is started, and no more step is needed before.
func (a action) starts() bool { return a == resume || a == bootstrap || a == join }

// verdict is a step, and why.
type verdict struct {
	action action
	why    string
	id     types.ID // to remove
	roster roster   // to start with
}

// decide is what a member does next.
//
// A member with an empty disk must never found a cluster while another one may live: two of three
// members that lost their disks could elect a leader without what the third still has. So it
// founds one only when every other member has said to this very process that it has nothing
// either, though it may have begun to found the same since, and has heard the same of this one: so
// nobody who has begun is a stranger to the others. What a member with data knows is no such word,
// since it may know less after a restart than it has promised. The word counts only from who says
// its own name and token, or runs etcd for the same cluster at an address of its own: where a
// member is gone, another one may have its address by now.
//
// And a member that was in the cluster must not come back under its old id with an empty disk,
// since it would break its promises: it is removed, and added under a new one. Whether the cluster
// has heard that it began is no matter: an id is taken up only by the process that had it added, or
// a founder's by one to which all the others have said that they were empty.
//
// Each step is decided anew from what is there, so that one that was interrupted is taken up again.
func decide(s self, d disk, others survey) verdict {
	if d.used {
		return decideUsed(s, d, others)
	}
	if others.agreed == nil {
		return found(s, others)
	}
	known, is := others.agreed.find(s)
	founder, _ := s.founders.find(s)
	switch {
	case others.agreed.cluster != s.founders.cluster:
		return verdict{action: wait, why: fmt.Sprintf("the disk is empty, and the others are "+
			"cluster %s, which was founded with other --peers or another --token (with these it "+
			"is %s): it is not joined", others.agreed.cluster, s.founders.cluster)}
	case !is:
		return verdict{action: add, why: "the cluster does not know this member: it is added"}
	case started(known):
		return verdict{action: remove, id: known.ID, why: fmt.Sprintf("the disk is empty, and the "+
			"cluster knows this member as %s, which had data: it is replaced by a new one",
			known.ID)}
	case known.ID != s.added && (known.ID != founder.ID || slices.ContainsFunc(others.views,
		func(v view) bool { return !v.was })):
		return verdict{action: remove, id: known.ID, why: fmt.Sprintf("the disk is empty, and the "+
			"cluster knows this member as %s, which may have begun: it is replaced by a new one",
			known.ID)}
	}
	return verdict{action: join, roster: *others.agreed,
		why: fmt.Sprintf("joining as %s, and taking over the cluster's data", known.ID)}
}

// decideUsed: whoever has data starts with it, unless a majority says that it is not theirs.
func decideUsed(s self, d disk, others survey) verdict {
	switch agreed := others.agreed; {
	case agreed == nil || agreed.cluster == d.cluster && agreed.has(d.member):
		return verdict{action: resume, why: fmt.Sprintf("starting as %s, from the disk", d.member)}
	case agreed.cluster != d.cluster:
		return verdict{action: refuse, why: fmt.Sprintf("its disk holds data of cluster %s, and "+
			"the others are cluster %s: give it the right volume, or delete what is on this one",
			d.cluster, agreed.cluster)}
	}
	return verdict{action: discard, why: fmt.Sprintf("the disk is of member %s, which was removed "+
		"from the cluster: its data are deleted, and %s joins anew", d.member, s.name)}
}

// found founds a cluster if all the others agree, and says what is missing otherwise.
func found(s self, others survey) verdict {
	mine, _ := s.founders.find(s)
	var reasons []string
	lost := false
	for _, v := range others.views {
		known, is := v.roster.find(s)
		switch {
		case v.err != nil:
			reasons = append(reasons, fmt.Sprintf("%s does not answer (%v)", v.peer.Name, v.err))
		case v.roster.cluster != s.founders.cluster:
			reasons = append(reasons, fmt.Sprintf("%s (%s) was told other --peers or another "+
				"--token than this one", v.peer.Name, v.peer.Address))
		case v.empty && !v.hearsMe:
			reasons = append(reasons, fmt.Sprintf("%s has not heard of that yet", v.peer.Name))
		case v.empty:
		case is && started(known), !is, known.ID != mine.ID, !v.was:
			lost = true
			reasons = append(reasons, fmt.Sprintf("%s has data of a cluster, of which no majority "+
				"answers", v.peer.Name))
		}
	}
	if len(reasons) == 0 {
		return verdict{action: bootstrap, roster: s.founders, why: fmt.Sprintf("all %d members "+
			"are there and none has data: founding the cluster", len(s.founders.members))}
	}
	why := "the disk is empty, and " + strings.Join(reasons, "; ")
	if lost {
		why += "; waiting for a majority to take this member in: start those that are missing; " +
			"if too many disks are lost, delete the data of all members, and they found a new " +
			"cluster"
	}
	return verdict{action: wait, why: why}
}
