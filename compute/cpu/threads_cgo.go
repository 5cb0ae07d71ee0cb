//go:build cgo

package cpu

// #include "kernels/team.h"
import "C"

import "fmt"

// setThreads replaces the team. Workspaces have room for any team not larger than the first.
func (n *native) setThreads(count int) error {
	var team *C.struct_team
	if count > 1 {
		if team = C.rondo_team_new(C.int(count)); team == nil {
			return fmt.Errorf("cpu: this machine cannot start %d threads: lower --threads", count)
		}
	}
	C.rondo_team_free(n.team)
	n.team = team
	return nil
}
