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

// find returns the member with s's peer URL or name. A member that was added but has never started
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

// started reports whether a member has taken part in its cluster. A member publishes its client
// URLs as soon as a majority hears it.
func started(m membership.Member) bool { return len(m.ClientURLs) > 0 }

// self is the member that decides.
type self struct {
	name     string
	url      string   // of its peers' listener
	founders roster   // the cluster that --peers and --token would found
	added    types.ID // id under which this process had itself added, before its start; 0: none
}

// disk identifies the data in a folder.
type disk struct {
	used            bool
	cluster, member types.ID
}

// view is another member's answer.
type view struct {
	peer      Peer
	address   string // address that answered
	err       error  // no answer, or another member's
	empty     bool   // it waits with an empty disk, to found roster.cluster
	hearsMe   bool   // it has heard that this member's disk is empty too
	saidEmpty bool   // it has told this process that its disk is empty, now or before
	roster    roster // otherwise the cluster as far as it knows; may be out of date
}

// survey holds the other members' answers.
type survey struct {
	views   []view
	agreed  *roster // the roster that a majority has just confirmed; nil: no majority answered
	clients []string
}

// action is a step towards the cluster.
type action int

const (
	wait      action = iota
	resume           // start from the disk
	bootstrap        // found a cluster with all the others
	join             // start as a member that the cluster knows and that has no data yet
	add              // have the majority add this member
	remove           // have the majority remove this member's old id, whose disk is lost
	discard          // empty the disk, which holds a removed member's data
	refuse           // exit
)

func (a action) starts() bool { return a == resume || a == bootstrap || a == join }

// verdict is an action and its reason.
type verdict struct {
	action action
	why    string
	id     types.ID // to remove
	roster roster   // to start with
}

// decide returns a member's next step.
//
// A member with an empty disk must not found a cluster while another may exist: two of three
// members that lost their disks could elect a leader without the data of the third. So it founds a
// cluster only if every other member has told this process that its disk is empty too, and has
// heard the same from this member. The other may have begun to found the cluster since; the members
// know each other then. The roster of a member with data does not prove that it is new, because
// after a restart it may know less than it has promised. An answer counts only if it carries the
// asked member's name and token, or comes from etcd in the same cluster at an address of its own: a
// lost member's address may belong to another one by now.
//
// A member must not return under its old id with an empty disk, because it would break its
// promises. It is removed, and added under a new id, even if the cluster has not heard that it
// began. Only two processes may use an id: the one that had it added, and for a founder's id one to
// which all others have said that they were empty.
//
// Each step is decided from the present state alone, so that a new process can resume after any
// step.
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
			"is %s): this member does not join it", others.agreed.cluster, s.founders.cluster)}
	case !is:
		return verdict{action: add, why: "the cluster does not know this member: it is added"}
	case started(known):
		return verdict{action: remove, id: known.ID, why: fmt.Sprintf("the disk is empty, and the "+
			"cluster knows this member as %s, which had data: it is replaced by a new one",
			known.ID)}
	case known.ID != s.added && (known.ID != founder.ID || slices.ContainsFunc(others.views,
		func(v view) bool { return !v.saidEmpty })):
		return verdict{action: remove, id: known.ID, why: fmt.Sprintf("the disk is empty, and the "+
			"cluster knows this member as %s, which may have begun: it is replaced by a new one",
			known.ID)}
	}
	return verdict{action: join, roster: *others.agreed,
		why: fmt.Sprintf("joining as %s, and taking over the cluster's data", known.ID)}
}

// decideUsed starts a member with its data, unless a majority says that they are not part of the
// cluster.
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

// found founds a cluster if all others agree, and otherwise returns what is missing.
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
			reasons = append(reasons, fmt.Sprintf("%s (%s) has other --peers or another "+
				"--token than this member", v.peer.Name, v.peer.Address))
		case v.empty && !v.hearsMe:
			reasons = append(reasons, fmt.Sprintf("%s has not heard of that yet", v.peer.Name))
		case v.empty:
		case is && started(known), !is, known.ID != mine.ID, !v.saidEmpty:
			lost = true
			reasons = append(reasons, fmt.Sprintf("%s has data of a cluster, and no majority of "+
				"it answers", v.peer.Name))
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
